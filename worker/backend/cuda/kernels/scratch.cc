// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cuda/kernels/scratch.cuh"
#include "worker/backend/cuda/kernels/kernels.h"

namespace takt::backend::cuda {
namespace {

std::int64_t PartialBytes(std::int64_t rows, std::int64_t columns, std::int64_t outputs) {
  return RowRuns(rows).count * outputs * PartialStride(columns) *
         static_cast<std::int64_t>(sizeof(float));
}

std::int64_t CountBytes(std::int64_t counts) {
  return counts * static_cast<std::int64_t>(sizeof(std::int32_t));
}

struct Scratch {
  std::int64_t operator()(const BiasGrad& op) const { return PartialBytes(op.rows, op.columns, 1); }
  std::int64_t operator()(const LayerNormBackwardWeights& op) const {
    return PartialBytes(op.rows, op.columns, 2);
  }
  // Where the sums are several kernels, they take turns.
  std::int64_t operator()(const LayerNormBackwardInput& op) const {
    if (op.sums.d_weight == nullptr) return 0;
    return PartialBytes(op.rows, op.columns, op.sums.of_d_input != nullptr ? 4 : 2);
  }
  std::int64_t operator()(const RmsNormBackwardInput& op) const {
    return op.sums.d_weight == nullptr ? 0 : PartialBytes(op.rows, op.columns, 1);
  }
  std::int64_t operator()(const RmsNormBackwardWeights& op) const {
    return PartialBytes(op.rows, op.columns, 1);
  }
  // Holds the rows in order of token.
  std::int64_t operator()(const EmbeddingBackward& op) const {
    if (op.d_token_table == nullptr) return 0;
    return op.batch * op.context * static_cast<std::int64_t>(sizeof(std::int32_t));
  }
  // Holds a loss of each row.
  std::int64_t operator()(const CrossEntropy& op) const {
    return op.rows * static_cast<std::int64_t>(sizeof(double));
  }
  std::int64_t operator()(const SumOfSquares& op) const {
    if (op.block_sums != nullptr) return 0;
    return (op.count + kSquaresPerBlock - 1) / kSquaresPerBlock *
           static_cast<std::int64_t>(sizeof(double));
  }
  std::int64_t operator()(const MuonUpdate& op) const {
    return kMuonSumBytes + (*this)(SumOfSquares{.count = op.rows * op.columns});
  }
  std::int64_t operator()(const PackBf16& op) const {
    return op.fp8 != Fp8Scaling::kNone ? kFp8ScratchBytes : 0;
  }
  // Holds sum(d_output * output) of each row and head.
  std::int64_t operator()(const AttentionBackward& op) const {
    return op.shape.batch * op.shape.context * op.shape.heads *
           static_cast<std::int64_t>(sizeof(float));
  }
  // Holds how often each expert is chosen: by all tokens, or by those of each sequence.
  std::int64_t operator()(const RouteTokens& op) const { return CountBytes(op.rows.experts); }
  std::int64_t operator()(const RouteTokensBackward& op) const {
    if (op.auxiliary_scale == 0) return 0;
    return CountBytes(op.rows.tokens / op.context * op.rows.experts);
  }
  template <class Other>
  std::int64_t operator()(const Other& /*op*/) const {
    return 0;
  }
};

}  // namespace

std::int64_t ScratchBytes(const Op& op) { return std::visit(Scratch(), op); }

}  // namespace takt::backend::cuda
