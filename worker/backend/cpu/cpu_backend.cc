// SPDX-License-Identifier: Apache-2.0
// Cuts ops into pieces by their shape and shares the pieces among threads.
#include "worker/backend/cpu/cpu_backend.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "worker/backend/cpu/bf16_products.h"
#include "worker/backend/cpu/expert_products.h"
#include "worker/backend/cpu/host_memory.h"
#include "worker/backend/cpu/kernels.h"
#include "worker/backend/cpu/matmul.h"
#include "worker/backend/cpu/muon.h"
#include "worker/backend/cpu/router.h"
#include "worker/backend/cpu/widening.h"
#include "worker/backend/validate.h"

namespace takt::backend {
namespace {

// Results depend on this number: column sums add partial sums of kRowsPerPartial rows.
constexpr std::int64_t kRowsPerPartial = 64;

class CpuBackend final : public HostMemory<Backend> {
 public:
  CpuBackend(const CpuOptions& options, const Kernels& kernels)
      : HostMemory(options.threads, kernels, options.ledger),
        bf16_(team_, kernels_, options.fp8_counters),
        experts_(team_, kernels_, bf16_),
        scratch_(static_cast<std::size_t>(options.threads)) {}

  absl::Status Run(const Op& op) override {
    RETURN_IF_ERROR(ValidateOp(op));
    return std::visit([this](const auto& o) { return InF32(o); }, op);
  }

  std::string description() const override {
    return absl::StrCat("cpu ", kernels_.name, MultipliesBf16(kernels_) ? " bf16" : "");
  }

 private:
  template <class F>
  void ForRows(std::int64_t rows, std::int64_t columns, const F& f) {
    ForPieces(rows, std::max<std::int64_t>(1, kElementsPerPiece / columns), f);
  }

  // Returns floats of one thread, 64-byte aligned, with unspecified contents. The memory only
  // grows.
  float* Scratch(int thread, std::int64_t count) {
    std::vector<float>& scratch = scratch_[static_cast<std::size_t>(thread)];
    constexpr std::size_t kSpare = kCacheLine / sizeof(float);
    if (scratch.size() < static_cast<std::size_t>(count) + kSpare)
      scratch.resize(static_cast<std::size_t>(count) + kSpare);
    void* start = scratch.data();
    std::size_t space = scratch.size() * sizeof(float);
    return static_cast<float*>(
        std::align(kCacheLine, static_cast<std::size_t>(count) * sizeof(float), start, space));
  }

  template <class O>
  absl::Status InF32(const O& op) {
    Widening widening(team_, kernels_);
    if constexpr (std::is_void_v<decltype(Execute(op))>) {
      Execute(widening.Widen(op));
    } else {
      RETURN_IF_ERROR(Execute(widening.Widen(op)));
    }
    widening.Round();
    return absl::OkStatus();
  }

  // A gradient in bf16 is summed once it is stored; the residual's, before it may be overwritten.
  absl::Status InF32(const LayerNormBackwardInput& op) {
    if (op.d_input.bf16 == nullptr || op.sums.of_d_input == nullptr)
      return InF32<LayerNormBackwardInput>(op);
    BiasGrad sum{.d_output = op.residual_gradient,
                 .d_bias = op.sums.of_residual_gradient,
                 .rows = op.rows,
                 .columns = op.columns,
                 .accumulate = op.sums.accumulate};
    RETURN_IF_ERROR(InF32(sum));
    LayerNormBackwardInput rest = op;
    rest.sums.of_residual_gradient = rest.sums.of_d_input = nullptr;
    RETURN_IF_ERROR(InF32<LayerNormBackwardInput>(rest));
    sum.d_output = op.d_input;
    sum.d_bias = op.sums.of_d_input;
    return InF32(sum);
  }

  // Returns a status only for ops that call a library.
  using HostMemory::Execute;
  absl::Status Execute(const Matmul& op) {
    if (op.m == 1 && !op.a_transposed) {
      MultiplyRow(op);
      return absl::OkStatus();
    }
    const MatmulBlocks blocks = CutMatmul(op);
    std::vector<absl::Status> errors(static_cast<std::size_t>(team_.size()));
    team_.ParallelFor(blocks.count, [&](std::int64_t block, int thread) {
      const auto t = static_cast<std::size_t>(thread);
      errors[t].Update(RunMatmulBlock(op, blocks, block, kernels_, scratch_[t]));
    });
    for (const absl::Status& error : errors) RETURN_IF_ERROR(error);
    return absl::OkStatus();
  }

  // The time of a product of one row is that of reading b. A column's sum has the same order in
  // every piece, so there are as many pieces as threads.
  void MultiplyRow(const Matmul& op) {
    constexpr std::int64_t kLeastColumns = 64;
    ForPieces(op.n, std::max(kLeastColumns, CeilDiv(op.n, team_.size())),
              [&](Range columns) { kernels_.row_product(op, columns); });
  }

  void Execute(PackBf16 op) {
    op.b = bf16_.InFp8(op);
    Pack(op);
  }
  absl::Status Execute(MatmulBf16 op) {
    if (op.stored != StoredB::kPacked) {
      const PackBf16 pack = bf16_.PackOf(op);
      Pack(pack);
      op.b = pack.packed;
    }
    RETURN_IF_ERROR(bf16_.Run(op));
    const std::int64_t count = op.m * op.n;
    float* const c = op.c.f32;
    switch (op.activation) {
      case Activation::kNone:
        return absl::OkStatus();
      case Activation::kGelu:
        ForElements(count, [&](Range range) { kernels_.round_bf16(c, op.inner, range); });
        Execute(GeluForward{.input = c, .output = c, .count = count});
        return absl::OkStatus();
      case Activation::kGeluGrad:
        return InF32(GeluBackward{.input = op.inner, .d_output = c, .d_input = c, .count = count});
    }
    return absl::OkStatus();
  }
  absl::Status Execute(const MatmulTransposedBf16& op) {
    RETURN_IF_ERROR(bf16_.Run(op));
    if (op.column_sums == nullptr) return absl::OkStatus();
    return InF32(BiasGrad{.d_output = op.b,
                          .d_bias = op.column_sums,
                          .rows = op.k,
                          .columns = op.n,
                          .accumulate = op.accumulate});
  }

#define TAKT_KERNEL(result, member, function, parameters)
#define TAKT_ELEMENTS_KERNEL(member, Op)                                     \
  void Execute(const Op& op) {                                               \
    ForElements(op.count, [&](Range range) { kernels_.member(op, range); }); \
  }
#define TAKT_ROWS_KERNEL(member, Op)                                              \
  void Execute(const Op& op) {                                                    \
    ForRows(op.rows, op.columns, [&](Range rows) { kernels_.member(op, rows); }); \
  }
#include "worker/backend/cpu/kernel_list.inc"

  // Sums columns in two stages: partial sums of fixed runs of rows side by side, then the sum of
  // these in order. partial(rows, out) writes `width` floats; output(i) says where columns [i *
  // columns, (i+1) * columns) of them go.
  template <class Partial, class Output>
  void SumColumns(std::int64_t rows, std::int64_t width, std::int64_t columns, bool accumulate,
                  const Partial& partial, const Output& output) {
    const std::int64_t count = CeilDiv(rows, kRowsPerPartial);
    partials_.resize(
        std::max<std::size_t>(partials_.size(), static_cast<std::size_t>(count * width)));
    team_.ParallelFor(count, [&](std::int64_t i, int) {
      partial(Range{i * kRowsPerPartial, std::min(rows, (i + 1) * kRowsPerPartial)},
              partials_.data() + i * width);
    });
    for (std::int64_t i = 0; i * columns < width; ++i) {
      ForPieces(columns, 256, [&](Range range) {
        kernels_.sum_partials(partials_.data() + i * columns, count, width, output(i), range,
                              accumulate);
      });
    }
  }

  void Execute(const BiasGrad& op) {
    SumColumns(
        op.rows, op.columns, op.columns, op.accumulate,
        [&](Range rows, float* out) { kernels_.bias_grad_partial(op, rows, out); },
        [&](std::int64_t) { return op.d_bias; });
  }

  void Execute(const LayerNormBackwardWeights& op) {
    SumColumns(
        op.rows, 2 * op.columns, op.columns, op.accumulate,
        [&](Range rows, float* out) { kernels_.layer_norm_weights_partial(op, rows, out); },
        [&](std::int64_t i) { return i == 0 ? op.d_weight : op.d_bias; });
  }

  void Execute(const RmsNormBackwardWeights& op) {
    SumColumns(
        op.rows, op.columns, op.columns, op.accumulate,
        [&](Range rows, float* out) { kernels_.rms_norm_weights_partial(op, rows, out); },
        [&](std::int64_t) { return op.d_weight; });
  }

  // Sums what d_input may overwrite first.
  void Execute(const LayerNormBackwardInput& op) {
    const LayerNormSums& sums = op.sums;
    const auto sum = [&](const Operand& terms, float* into) {
      if (into == nullptr) return;
      Execute(BiasGrad{.d_output = terms,
                       .d_bias = into,
                       .rows = op.rows,
                       .columns = op.columns,
                       .accumulate = sums.accumulate});
    };
    if (sums.d_weight != nullptr) {
      Execute(LayerNormBackwardWeights{.d_output = op.d_output,
                                       .x = op.x,
                                       .mean = op.mean,
                                       .rstd = op.rstd,
                                       .d_weight = sums.d_weight,
                                       .d_bias = sums.d_bias,
                                       .rows = op.rows,
                                       .columns = op.columns,
                                       .accumulate = sums.accumulate});
    }
    sum(op.residual_gradient, sums.of_residual_gradient);
    ForRows(op.rows, op.columns, [&](Range rows) { kernels_.layer_norm_backward_input(op, rows); });
    sum(op.d_input, sums.of_d_input);
    RoundGradient(op);
  }

  void Execute(const RmsNormBackwardInput& op) {
    if (op.sums.d_weight != nullptr) {
      Execute(RmsNormBackwardWeights{.d_output = op.d_output,
                                     .x = op.x,
                                     .rstd = op.rstd,
                                     .d_weight = op.sums.d_weight,
                                     .rows = op.rows,
                                     .columns = op.columns,
                                     .accumulate = op.sums.accumulate});
    }
    ForRows(op.rows, op.columns, [&](Range rows) { kernels_.rms_norm_backward_input(op, rows); });
    RoundGradient(op);
  }

  // op: of a norm's input.
  void RoundGradient(const auto& op) {
    if (op.rounded == nullptr) return;
    ForElements(op.rows * op.columns,
                [&](Range range) { kernels_.round_bf16(op.d_input.f32, op.rounded, range); });
  }

  void Execute(const Rotary& op) {
    ForRows(op.batch * op.context, op.heads * op.head_size,
            [&](Range rows) { kernels_.rotary(op, rows); });
  }

  void Execute(const AttentionForward& op) {
    const std::int64_t floats = kernels_.attention_forward_scratch(op.shape);
    team_.ParallelFor(op.shape.batch * op.shape.kv_heads, [&](std::int64_t item, int thread) {
      kernels_.attention_forward(op, item, Scratch(thread, floats));
    });
  }

  void Execute(const AttentionBackward& op) {
    const std::int64_t floats = kernels_.attention_backward_scratch(op.shape);
    team_.ParallelFor(op.shape.batch * op.shape.kv_heads, [&](std::int64_t item, int thread) {
      kernels_.attention_backward(op, item, Scratch(thread, floats));
    });
  }

  void Execute(const RouteTokens& op) { Route(op, team_); }
  void Execute(const RouteTokensBackward& op) { RouteBackward(op, team_); }
  void Execute(const CountExpertRows& op) {
    for (std::int64_t e = 0; e < op.rows.experts; ++e)
      op.counts[e] = op.rows.offsets[e + 1] - op.rows.offsets[e];
  }
  void Execute(const AddExpertRows& op) {
    for (std::int64_t e = 0; e < op.rows.experts; ++e) {
      const auto rows = static_cast<float>(op.rows.offsets[e + 1] - op.rows.offsets[e]);
      op.sums[e] = op.accumulate ? op.sums[e] + rows : rows;
    }
  }
  void Execute(const BalanceExperts& op) {
    for (std::int64_t e = 0; e < op.count; ++e) {
      float step = 0;
      if (op.counts[e] < op.mean) step = op.rate;
      if (op.counts[e] > op.mean) step = -op.rate;
      op.bias[e] = op.previous[e] + step;
    }
  }
  void Execute(const ExpertSwigluForward& op) {
    ForRows(op.rows.count(), op.columns,
            [&](Range rows) { kernels_.expert_swiglu_forward(op, rows); });
  }
  void Execute(const ExpertSwigluBackward& op) {
    ForRows(op.rows.count(), op.columns,
            [&](Range rows) { kernels_.expert_swiglu_backward(op, rows); });
  }
  absl::Status Execute(const ExpertMatmul& op) {
    return experts_.Run(op, [this](const Matmul& product) { return Execute(product); });
  }
  absl::Status Execute(const ExpertMatmulTransposed& op) {
    return experts_.Run(op, [this](const Matmul& product) { return Execute(product); });
  }
  void Execute(const PackTokens& op) { experts_.Run(op); }
  void Execute(const AddRowsToTokens& op) { experts_.Run(op); }
  void Execute(const PackPairs& op) {
    for (std::int64_t row = 0; row < op.rows.count(); ++row)
      op.by_row[row] = op.by_pair[op.rows.pairs[row]];
  }
  void Execute(const UnpackPairs& op) {
    for (std::int64_t row = 0; row < op.rows.count(); ++row)
      op.by_pair[op.rows.pairs[row]] = op.by_row[row];
  }

  void Execute(const CachedAttention& op) {
    team_.ParallelFor(op.kv_heads, [&](std::int64_t item, int thread) {
      kernels_.cached_attention(op, item, Scratch(thread, op.past + op.rows));
    });
  }

  void Execute(const EmbeddingForward& op) {
    ForRows(op.batch * op.context, op.columns,
            [&](Range rows) { kernels_.embedding_forward(op, rows); });
  }

  void Execute(const EmbeddingBackward& op) {
    if (!op.accumulate) {
      if (op.d_token_table != nullptr)
        Execute(Fill{.output = op.d_token_table, .count = op.vocab * op.columns});
      if (op.d_position_table != nullptr)
        Execute(Fill{.output = op.d_position_table, .count = op.positions * op.columns});
    }
    ForPieces(op.columns, 64, [&](Range columns) { kernels_.embedding_backward(op, columns); });
  }

  void Execute(const CrossEntropy& op) {
    row_losses_.resize(static_cast<std::size_t>(op.rows));
    ForRows(op.rows, op.blocks,
            [&](Range rows) { kernels_.cross_entropy(op, rows, row_losses_.data()); });
    if (op.loss_sum != nullptr) *op.loss_sum = SumInOrder(row_losses_);
  }

  template <UpdateOp O>
  void Update(const O& op, void (*update)(const O&, const UpdatedTensor&, Range elements)) {
    for (const UpdatedTensor& tensor : op.tensors) {
      ForElements(tensor.count, [&](Range range) {
        update(op, tensor, range);
        if (tensor.rounded != nullptr) kernels_.round_bf16(tensor.parameter, tensor.rounded, range);
      });
    }
  }
  void Execute(const AdamwUpdate& op) { Update(op, kernels_.adamw); }
  void Execute(const LionUpdate& op) { Update(op, kernels_.lion); }
  void Execute(const SgdUpdate& op) { Update(op, kernels_.sgd); }

  absl::Status Execute(const MuonUpdate& op) {
    return UpdateByMuon(op, team_, [this](const Op& part) { return Run(part); });
  }

  void Execute(const SumOfSquares& op) {
    constexpr std::int64_t kBlocksPerPiece = 16;
    block_sums_.resize(static_cast<std::size_t>(CeilDiv(op.count, kSquaresPerBlock)));
    ForPieces(static_cast<std::int64_t>(block_sums_.size()), kBlocksPerPiece, [&](Range blocks) {
      for (std::int64_t b = blocks.begin; b < blocks.end; ++b) {
        const std::int64_t first = b * kSquaresPerBlock;
        block_sums_[static_cast<std::size_t>(b)] =
            kernels_.sum_of_squares(op.input + first, std::min(kSquaresPerBlock, op.count - first));
      }
    });
    if (op.block_sums != nullptr) {
      std::ranges::copy(block_sums_, op.block_sums);
    } else {
      *op.result = SumInOrder(block_sums_);
    }
  }

  void Execute(const Fill& op) {
    ForElements(op.count, [&](Range range) {
      std::fill(op.output + range.begin, op.output + range.end, op.value);
    });
  }

  static double SumInOrder(const std::vector<double>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0);
  }

  Bf16Products bf16_;
  ExpertProducts experts_;
  // Between loops the caller's thread owns all of it; within a loop thread t owns entry t.
  std::vector<std::vector<float>> scratch_;
  std::vector<float> partials_;
  std::vector<double> row_losses_, block_sums_;
};

class CpuMemory final : public HostMemory<MemoryBackend> {
 public:
  CpuMemory(const Kernels& kernels, MemoryLedger* ledger)
      : HostMemory(/*threads=*/1, kernels, ledger) {}

  absl::Status Run(const Copy& op) override { return ValidateAndExecute(op); }
  absl::Status Run(const Add& op) override { return ValidateAndExecute(op); }
  absl::Status Run(const PackBf16& op) override {
    if (op.fp8 != Fp8Scaling::kNone)
      return absl::InvalidArgumentError("PackBf16: this lane does not round to FP8");
    RETURN_IF_ERROR(ValidateOp(op));
    Pack(op);
    return absl::OkStatus();
  }

 private:
  template <class O>
  absl::Status ValidateAndExecute(const O& op) {
    RETURN_IF_ERROR(ValidateOp(op));
    Execute(op);
    return absl::OkStatus();
  }
};

absl::StatusOr<const Kernels*> FindKernels(const std::string& instruction_set) {
  for (const Kernels* kernels : RunnableKernels()) {
    if (instruction_set.empty() || instruction_set == kernels->name) return kernels;
  }
  return absl::InvalidArgumentError(absl::StrCat("instruction_set is \"", instruction_set,
                                                 "\", this machine has ",
                                                 absl::StrJoin(CpuInstructionSets(), ", ")));
}

class CpuBackends final : public BackendFactory {
 public:
  explicit CpuBackends(CpuOptions options) : options_(std::move(options)) {}
  absl::StatusOr<std::unique_ptr<Backend>> CreateCompute() override {
    return CreateCpuBackend(options_);
  }
  absl::StatusOr<std::unique_ptr<MemoryBackend>> CreateMemory(StreamKind) override {
    ASSIGN_OR_RETURN(const Kernels* const kernels, FindKernels(options_.instruction_set));
    return std::make_unique<CpuMemory>(*kernels, options_.ledger);
  }
  bool memory_is_host() const override { return true; }

 private:
  const CpuOptions options_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(const CpuOptions& options) {
  constexpr int kMostThreads = 1024;
  if (options.threads < 1 || options.threads > kMostThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("threads is ", options.threads, ", must be between 1 and ", kMostThreads));
  }
  ASSIGN_OR_RETURN(const Kernels* const kernels, FindKernels(options.instruction_set));
  return std::make_unique<CpuBackend>(options, *kernels);
}

std::unique_ptr<BackendFactory> CreateCpuBackends(const CpuOptions& options) {
  return std::make_unique<CpuBackends>(options);
}

std::vector<std::string> CpuInstructionSets() {
  std::vector<std::string> names;
  for (const Kernels* kernels : RunnableKernels()) names.emplace_back(kernels->name);
  return names;
}

}  // namespace takt::backend
