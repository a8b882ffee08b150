// SPDX-License-Identifier: Apache-2.0
// Attention by cuDNN's fused kernels, in bf16. q, k, v and the output's gradient are rounded into
// scratch memory, outputs come back to f32; softmax and all sums inside are f32.
#include <cmath>
#include <exception>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "cudnn_frontend.h"
#include "worker/backend/cuda/attention.h"
#include "worker/backend/cuda/attention_layout.h"
#include "worker/backend/cuda/device.h"
#include "worker/backend/cuda/kernels/kernels.h"
#include "worker/backend/cuda/scratch.h"

namespace takt::backend::cuda {
namespace {

namespace fe = cudnn_frontend;
using Graph = fe::graph::Graph;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;
using Pointers = std::unordered_map<std::int64_t, void*>;

enum TensorId : std::int64_t { kQ = 1, kK, kV, kOutput, kStats, kDOutput, kDQ, kDK, kDV };

absl::Status ToStatus(fe::error_t error, std::string_view what) {
  if (error.is_good()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(std::string(what), ": cuDNN: ", error.get_message()));
}

// The front end reports by value, and what it is built on may throw.
template <class Body>
absl::Status Call(std::string_view what, const Body& body) {
  try {
    return ToStatus(body(), what);
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat(std::string(what), ": cuDNN: ", error.what()));
  }
}

// A matrix of our ops as cuDNN sees it: [B,H,T,D], whatever its rows hold beside.
Tensor Heads(Graph& graph, TensorId id, const AttentionShape& s, std::int64_t heads,
             std::int64_t stride) {
  return graph.tensor(fe::graph::Tensor_attributes()
                          .set_uid(id)
                          .set_dim({s.batch, heads, s.context, s.head_size})
                          .set_stride({s.context * stride, s.head_size, stride, 1}));
}

void MakeOutput(const Tensor& tensor, TensorId id, const AttentionShape& s, std::int64_t heads,
                std::int64_t stride) {
  tensor->set_output(true)
      .set_uid(id)
      .set_dim({s.batch, heads, s.context, s.head_size})
      .set_stride({s.context * stride, s.head_size, stride, 1});
}

std::vector<std::int64_t> StatsDims(const AttentionShape& s) {
  return {s.batch, s.heads, s.context, 1};
}
std::vector<std::int64_t> StatsStrides(const AttentionShape& s) {
  return {s.heads * s.context, s.context, 1, 1};
}

float Scale(const AttentionShape& s) { return 1 / std::sqrt(static_cast<float>(s.head_size)); }

std::unique_ptr<Graph> NewGraph() {
  auto graph = std::make_unique<Graph>();
  graph->set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  return graph;
}

std::unique_ptr<Graph> DescribeForward(const AttentionShape& s) {
  auto graph = NewGraph();
  const Tensor q = Heads(*graph, kQ, s, s.heads, s.q_stride);
  const Tensor k = Heads(*graph, kK, s, s.kv_heads, s.kv_stride);
  const Tensor v = Heads(*graph, kV, s, s.kv_heads, s.kv_stride);
  auto [output, stats] = graph->sdpa(
      q, k, v,
      fe::graph::SDPA_attributes().set_generate_stats(true).set_causal_mask(true).set_attn_scale(
          Scale(s)));
  MakeOutput(output, kOutput, s, s.heads, s.out_stride);
  stats->set_output(true)
      .set_uid(kStats)
      .set_data_type(fe::DataType_t::FLOAT)
      .set_dim(StatsDims(s))
      .set_stride(StatsStrides(s));
  return graph;
}

std::unique_ptr<Graph> DescribeBackward(const AttentionShape& s) {
  auto graph = NewGraph();
  const Tensor q = Heads(*graph, kQ, s, s.heads, s.q_stride);
  const Tensor k = Heads(*graph, kK, s, s.kv_heads, s.kv_stride);
  const Tensor v = Heads(*graph, kV, s, s.kv_heads, s.kv_stride);
  const Tensor output = Heads(*graph, kOutput, s, s.heads, s.out_stride);
  const Tensor d_output = Heads(*graph, kDOutput, s, s.heads, s.out_stride);
  const Tensor stats = graph->tensor(fe::graph::Tensor_attributes()
                                         .set_uid(kStats)
                                         .set_data_type(fe::DataType_t::FLOAT)
                                         .set_dim(StatsDims(s))
                                         .set_stride(StatsStrides(s)));
  auto [d_q, d_k, d_v] = graph->sdpa_backward(q, k, v, output, d_output, stats,
                                              fe::graph::SDPA_backward_attributes()
                                                  .set_causal_mask(true)
                                                  .set_attn_scale(Scale(s))
                                                  .set_deterministic_algorithm(true));
  MakeOutput(d_q, kDQ, s, s.heads, s.q_stride);
  MakeOutput(d_k, kDK, s, s.kv_heads, s.kv_stride);
  MakeOutput(d_v, kDV, s, s.kv_heads, s.kv_stride);
  return graph;
}

Qkv<const float> Inputs(const AttentionForward& op) { return {op.q, op.k, op.v}; }
Qkv<const float> Inputs(const AttentionBackward& op) { return {op.q, op.k, op.v}; }

class CudnnAttention final : public Attention {
 public:
  static absl::StatusOr<std::unique_ptr<Attention>> Create(const AttentionOptions& options) {
    auto attention = std::unique_ptr<CudnnAttention>(new CudnnAttention(options));
    cudnnStatus_t error = cudnnCreate(&attention->handle_);
    if (error == CUDNN_STATUS_SUCCESS) error = cudnnSetStream(attention->handle_, options.stream);
    if (error != CUDNN_STATUS_SUCCESS) {
      return absl::InternalError(
          absl::StrCat("opening the library: cuDNN: ", cudnnGetErrorString(error)));
    }
    return attention;
  }
  ~CudnnAttention() override {
    plans_.clear();
    if (handle_ != nullptr) static_cast<void>(cudnnDestroy(handle_));
  }

  bool CanRun(const AttentionForward& op) override {
    return Fits(op) && PlanOf(op.shape, false).graph != nullptr;
  }
  bool CanRun(const AttentionBackward& op) override {
    return Fits(op) && LayoutOf(op.shape, Gradients(op)) == LayoutOf(op.shape, Inputs(op)) &&
           PlanOf(op.shape, true).graph != nullptr;
  }

  absl::Status Run(const AttentionForward& op) override {
    const Plan& plan = PlanOf(op.shape, false);
    const std::int64_t out = OutputCount(op.shape);
    ASSIGN_OR_RETURN(Bf16 * next, Reserve(plan, QkvCount(op.shape) + out));
    const Qkv<Bf16> qkv = RoundQkv(op, next);
    next += QkvCount(op.shape);
    Bf16* const output = next;
    next += out;
    RETURN_IF_ERROR(Execute(
        plan, {{kQ, qkv.q}, {kK, qkv.k}, {kV, qkv.v}, {kOutput, output}, {kStats, op.logsumexp}},
        next));
    Widen(output, op.output, out);
    return cuda::ToStatus(cudaGetLastError(), "enqueueing attention");
  }

  absl::Status Run(const AttentionBackward& op) override {
    const Plan& plan = PlanOf(op.shape, true);
    const std::int64_t out = OutputCount(op.shape), all = QkvCount(op.shape);
    ASSIGN_OR_RETURN(Bf16 * next, Reserve(plan, 2 * all + 2 * out));
    const auto take = [&next](std::int64_t count) { return std::exchange(next, next + count); };
    const Qkv<Bf16> qkv = RoundQkv(op, take(all));
    Bf16* const output = Round(op.output, take(out), out);
    Bf16* const d_output = Round(op.d_output, take(out), out);
    const QkvLayout layout = *LayoutOf(op.shape, Inputs(op));
    const Qkv<Bf16> gradients = Place(op.shape, layout, take(all));
    RETURN_IF_ERROR(Execute(plan,
                            {{kQ, qkv.q},
                             {kK, qkv.k},
                             {kV, qkv.v},
                             {kOutput, output},
                             {kDOutput, d_output},
                             {kStats, const_cast<float*>(op.logsumexp)},
                             {kDQ, gradients.q},
                             {kDK, gradients.k},
                             {kDV, gradients.v}},
                            next));
    const std::int64_t rows = Rows(op.shape);
    if (layout == QkvLayout::kTogether) {
      Widen(gradients.q, op.d_q, all);
    } else {
      Widen(gradients.q, op.d_q, rows * QueryColumns(op.shape));
      Widen(gradients.k, op.d_k, rows * KeyColumns(op.shape));
      Widen(gradients.v, op.d_v, rows * KeyColumns(op.shape));
    }
    return cuda::ToStatus(cudaGetLastError(), "enqueueing attention");
  }

 private:
  // graph: null if cuDNN has no kernel for the shape.
  struct Plan {
    std::unique_ptr<Graph> graph;
    std::int64_t workspace_bytes = 0;
  };
  using PlanKey = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                             std::int64_t, bool>;

  explicit CudnnAttention(const AttentionOptions& options)
      : stream_(options.stream), scratch_(*options.arena) {}

  static Qkv<float> Gradients(const AttentionBackward& op) { return {op.d_q, op.d_k, op.d_v}; }
  static std::int64_t OutputCount(const AttentionShape& s) { return Rows(s) * QueryColumns(s); }

  template <class AttentionOp>
  static bool Fits(const AttentionOp& op) {
    constexpr std::int64_t kPerVector = 8;
    const AttentionShape& s = op.shape;
    return s.bf16 && s.head_size % kPerVector == 0 && s.out_stride == QueryColumns(s) &&
           LayoutOf(s, Inputs(op)).has_value();
  }

  const Plan& PlanOf(const AttentionShape& s, bool backward) {
    const auto [it, is_new] = plans_.try_emplace(
        PlanKey(s.batch, s.context, s.heads, s.kv_heads, s.head_size, s.q_stride, backward));
    if (is_new) it->second = Build(s, backward);
    return it->second;
  }

  // The heuristic's first kernel: the same on all devices of one kind, unlike the fastest of a few.
  Plan Build(const AttentionShape& s, bool backward) {
    Plan plan;
    const absl::Status built = Call("planning attention", [&] {
      plan.graph = backward ? DescribeBackward(s) : DescribeForward(s);
      return plan.graph->build(handle_, {fe::HeurMode_t::A});
    });
    const absl::Status sized =
        built.ok() ? Call("planning attention",
                          [&] { return plan.graph->get_workspace_size(plan.workspace_bytes); })
                   : built;
    if (!sized.ok()) plan.graph = nullptr;
    return plan;
  }

  LaunchContext context() const { return {.stream = stream_}; }

  // Room for `count` elements, and the plan's workspace behind them.
  absl::StatusOr<Bf16*> Reserve(const Plan& plan, std::int64_t count) {
    ASSIGN_OR_RETURN(std::byte* const data,
                     scratch_.AtLeast(count * std::int64_t{sizeof(Bf16)} + kArenaAlignment +
                                      plan.workspace_bytes));
    return reinterpret_cast<Bf16*>(data);
  }

  absl::Status Execute(const Plan& plan, Pointers pointers, Bf16* end) {
    const auto address = reinterpret_cast<std::uintptr_t>(end);
    const std::uintptr_t gap = -address % static_cast<std::uintptr_t>(kArenaAlignment);
    std::byte* const workspace = reinterpret_cast<std::byte*>(end) + gap;
    return Call("enqueueing attention",
                [&] { return plan.graph->execute(handle_, pointers, workspace); });
  }

  Bf16* Round(const float* input, Bf16* rounded, std::int64_t count) {
    Launch(RoundBf16{.input = input, .rounded = rounded, .count = count}, context());
    return rounded;
  }
  void Widen(const Bf16* input, float* output, std::int64_t count) {
    Launch(WidenBf16{.input = input, .output = output, .count = count}, context());
  }

  template <class AttentionOp>
  Qkv<Bf16> RoundQkv(const AttentionOp& op, Bf16* base) {
    const AttentionShape& s = op.shape;
    const QkvLayout layout = *LayoutOf(s, Inputs(op));
    const Qkv<Bf16> rounded = Place(s, layout, base);
    if (layout == QkvLayout::kTogether) {
      Round(op.q, rounded.q, QkvCount(s));
    } else {
      Round(op.q, rounded.q, Rows(s) * QueryColumns(s));
      Round(op.k, rounded.k, Rows(s) * KeyColumns(s));
      Round(op.v, rounded.v, Rows(s) * KeyColumns(s));
    }
    return rounded;
  }

  const cudaStream_t stream_;
  Scratch scratch_;
  cudnnHandle_t handle_ = nullptr;
  std::map<PlanKey, Plan> plans_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Attention>> CreateCudnnAttention(const AttentionOptions& options) {
  return CudnnAttention::Create(options);
}

std::string CudnnVersion() {
  const std::size_t version = cudnnGetVersion();  // 91300 is 9.13.0
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace takt::backend::cuda
