// SPDX-License-Identifier: Apache-2.0
// Computes attention by cuDNN's fused kernels, on tensors in bf16 where they lie. Softmax and all
// sums inside are f32.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "cudnn_frontend.h"
#include "worker/backend/cuda/attention.h"
#include "worker/backend/cuda/cudnn_shape.h"
#include "worker/backend/cuda/device.h"
#include "worker/backend/cuda/region.h"
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
  const std::string message = absl::StrCat(std::string(what), ": cuDNN: ", error.get_message());
  switch (error.get_code()) {
    case fe::error_code_t::GRAPH_NOT_SUPPORTED:
    case fe::error_code_t::HEURISTIC_QUERY_FAILED:
    case fe::error_code_t::GRAPH_EXECUTION_PLAN_CREATION_FAILED:
      return absl::FailedPreconditionError(message);
    default:
      return absl::InternalError(message);
  }
}

// The front end returns its errors, and what it is built on may throw.
template <class Body>
absl::Status Call(std::string_view what, const Body& body) {
  try {
    return ToStatus(body(), what);
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat(std::string(what), ": cuDNN: ", error.what()));
  }
}

// Describes a matrix of our ops as cuDNN sees it: [B,H,T,D], whatever else its rows hold.
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

// The library's bound counts the query's own key, as our window does.
void SetWindow(auto& attributes, const AttentionShape& s) {
  if (s.window > 0) attributes.set_diagonal_band_left_bound(static_cast<int>(s.window));
}

std::unique_ptr<Graph> DescribeForward(const AttentionShape& s) {
  auto graph = NewGraph();
  const Tensor q = Heads(*graph, kQ, s, s.heads, s.q_stride);
  const Tensor k = Heads(*graph, kK, s, s.kv_heads, s.kv_stride);
  const Tensor v = Heads(*graph, kV, s, s.kv_heads, s.kv_stride);
  fe::graph::SDPA_attributes attributes;
  attributes.set_generate_stats(true).set_causal_mask(true).set_attn_scale(Scale(s));
  SetWindow(attributes, s);
  auto [output, stats] = graph->sdpa(q, k, v, attributes);
  MakeOutput(output, kOutput, s, s.heads, s.out_stride);
  stats->set_output(true)
      .set_uid(kStats)
      .set_data_type(fe::DataType_t::FLOAT)
      .set_dim(StatsDims(s))
      .set_stride(StatsStrides(s));
  return graph;
}

std::unique_ptr<Graph> DescribeBackward(const AttentionShape& s, bool any_order) {
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
  fe::graph::SDPA_backward_attributes attributes;
  attributes.set_causal_mask(true).set_attn_scale(Scale(s)).set_deterministic_algorithm(!any_order);
  SetWindow(attributes, s);
  auto [d_q, d_k, d_v] = graph->sdpa_backward(q, k, v, output, d_output, stats, attributes);
  MakeOutput(d_q, kDQ, s, s.heads, s.q_stride);
  MakeOutput(d_k, kDK, s, s.kv_heads, s.kv_stride);
  MakeOutput(d_v, kDV, s, s.kv_heads, s.kv_stride);
  return graph;
}

void* Pointer(const Operand& tensor) { return const_cast<Bf16*>(tensor.bf16); }

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

  absl::Status Build(const AttentionForward& op) override { return PlanOf(op.shape, false).status; }
  absl::Status Build(const AttentionBackward& op) override {
    return ForParts(op, [this](const AttentionBackward& part) -> absl::Status {
      return PlanOf(part.shape, true).status;
    });
  }

  absl::Status Prepare(const AttentionForward& op) override {
    return MakeReady(PlanOf(op.shape, false), op.shape, kStats);
  }
  absl::Status Prepare(const AttentionBackward& op) override {
    return ForParts(op, [this](const AttentionBackward& part) {
      return MakeReady(PlanOf(part.shape, true), part.shape, kDV);
    });
  }

  absl::Status Run(const AttentionForward& op) override {
    return Execute(PlanOf(op.shape, false), {{kQ, Pointer(op.q)},
                                             {kK, Pointer(op.k)},
                                             {kV, Pointer(op.v)},
                                             {kOutput, Pointer(op.output)},
                                             {kStats, op.logsumexp}});
  }

  absl::Status Run(const AttentionBackward& op) override {
    return ForParts(op, [this](const AttentionBackward& part) { return RunPart(part); });
  }

 private:
  struct Plan {
    absl::Status status;  // why there is no graph
    std::unique_ptr<Graph> graph;
    std::int64_t workspace_bytes = 0;
    bool launched = false;
  };
  using PlanKey = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                             std::int64_t, std::int64_t, std::int64_t, std::int64_t, bool>;

  explicit CudnnAttention(const AttentionOptions& options)
      : scratch_(*options.arena), stream_(options.stream), any_order_(options.any_order) {}

  // Calls use(part) for the parts of the batch. In any order, no gradients of scores are stored, so
  // there is one part.
  template <class Use>
  absl::Status ForParts(const AttentionBackward& op, const Use& use) const {
    const std::int64_t count = any_order_ ? op.shape.batch : SequencesAtATime(op.shape);
    for (std::int64_t first = 0; first < op.shape.batch; first += count)
      RETURN_IF_ERROR(use(Sequences(op, first, std::min(count, op.shape.batch - first))));
    return absl::OkStatus();
  }

  // Makes room for a plan, and launches it once on memory that holds any one of its tensors, so
  // that its kernels are loaded. shape: what it computes; last: of the ids of its tensors.
  absl::Status MakeReady(Plan& plan, const AttentionShape& shape, TensorId last) {
    RETURN_IF_ERROR(plan.status);
    RETURN_IF_ERROR(scratch_.AtLeast(plan.workspace_bytes).status());
    if (plan.launched) return absl::OkStatus();
    plan.launched = true;
    const std::int64_t widest = std::max({shape.q_stride, shape.kv_stride, shape.out_stride,
                                          2 * shape.heads});  // its statistics are in f32
    constexpr auto kElement = static_cast<std::int64_t>(sizeof(Bf16));
    Region tensors;
    const absl::Status allocated =
        tensors.Allocate(shape.batch * shape.context * widest * kElement, "loading attention");
    // Too little memory is free. The kernels are then loaded in step 1.
    if (absl::IsResourceExhausted(allocated)) return absl::OkStatus();
    RETURN_IF_ERROR(allocated);
    Pointers pointers;
    for (std::int64_t id = kQ; id <= last; ++id) pointers[id] = tensors.data();
    RETURN_IF_ERROR(Execute(plan, std::move(pointers)));
    return cuda::ToStatus(cudaStreamSynchronize(stream_), "loading attention");
  }

  absl::Status RunPart(const AttentionBackward& op) {
    return Execute(PlanOf(op.shape, true), {{kQ, Pointer(op.q)},
                                            {kK, Pointer(op.k)},
                                            {kV, Pointer(op.v)},
                                            {kOutput, Pointer(op.output)},
                                            {kDOutput, Pointer(op.d_output)},
                                            {kStats, const_cast<float*>(op.logsumexp)},
                                            {kDQ, Pointer(op.d_q)},
                                            {kDK, Pointer(op.d_k)},
                                            {kDV, Pointer(op.d_v)}});
  }

  Plan& PlanOf(const AttentionShape& s, bool backward) {
    const auto [it, is_new] =
        plans_.try_emplace(PlanKey(s.batch, s.context, s.heads, s.kv_heads, s.head_size, s.q_stride,
                                   s.kv_stride, s.out_stride, s.window, backward));
    if (is_new) it->second = Build(s, backward);
    return it->second;
  }

  // Takes the heuristic's first kernel: it is the same on all devices of one kind, unlike the
  // fastest of a few.
  Plan Build(const AttentionShape& s, bool backward) {
    Plan plan;
    plan.status = Call("planning attention", [&] {
      plan.graph = backward ? DescribeBackward(s, any_order_) : DescribeForward(s);
      return plan.graph->build(handle_, {fe::HeurMode_t::A});
    });
    if (plan.status.ok()) {
      plan.status = Call("planning attention",
                         [&] { return plan.graph->get_workspace_size(plan.workspace_bytes); });
    }
    if (plan.status.ok() && plan.workspace_bytes > kMostCudnnWorkspaceBytes) {
      plan.status = absl::FailedPreconditionError(
          absl::StrCat("its kernel needs a workspace of ", plan.workspace_bytes, " bytes, at most ",
                       kMostCudnnWorkspaceBytes, " are taken"));
    }
    // A refusal inside leaves an error behind that no later call should report.
    if (!plan.status.ok()) static_cast<void>(cudaGetLastError());
    return plan;
  }

  absl::Status Execute(const Plan& plan, Pointers pointers) {
    RETURN_IF_ERROR(plan.status);
    ASSIGN_OR_RETURN(std::byte* const workspace, scratch_.AtLeast(plan.workspace_bytes));
    return Call("enqueueing attention",
                [&] { return plan.graph->execute(handle_, pointers, workspace); });
  }

  Scratch scratch_;
  const cudaStream_t stream_;
  const bool any_order_;
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
