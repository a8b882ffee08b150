// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cuda/cudnn_shape.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>

namespace takt::backend::cuda {
namespace {

constexpr std::int64_t kPerVector = 8;  // elements in 16 bytes
constexpr std::uintptr_t kVectorBytes = 16;

bool ShapeFits(const AttentionShape& s) {
  for (const std::int64_t elements : {s.head_size, s.q_stride, s.kv_stride, s.out_stride}) {
    if (elements % kPerVector != 0) return false;
  }
  return true;
}

bool TensorsFit(std::initializer_list<Operand> tensors) {
  for (const Operand& tensor : tensors) {
    if (tensor.bf16 == nullptr) return false;
    if (reinterpret_cast<std::uintptr_t>(tensor.bf16) % kVectorBytes != 0) return false;
  }
  return true;
}

}  // namespace

bool FitsCudnn(const AttentionForward& op) {
  return op.starts == nullptr && ShapeFits(op.shape) && TensorsFit({op.q, op.k, op.v, op.output});
}

bool FitsCudnn(const AttentionBackward& op) {
  return op.starts == nullptr && ShapeFits(op.shape) &&
         TensorsFit({op.q, op.k, op.v, op.output, op.d_output, op.d_q, op.d_k, op.d_v});
}

std::int64_t SequencesAtATime(const AttentionShape& s) {
  constexpr std::int64_t kTile = 128;
  const std::int64_t context = (s.context + kTile - 1) / kTile * kTile;
  const std::int64_t bytes = s.heads * context * context * static_cast<std::int64_t>(sizeof(Bf16));
  const std::int64_t most = std::max(std::int64_t{1}, kDesiredScoreBytes / bytes);
  const std::int64_t parts = (s.batch + most - 1) / most;
  return (s.batch + parts - 1) / parts;
}

AttentionBackward Sequences(const AttentionBackward& op, std::int64_t first, std::int64_t count) {
  const AttentionShape& s = op.shape;
  const std::int64_t row = first * s.context;
  AttentionBackward part = op;
  part.shape.batch = count;
  const auto skip = [row](auto& tensor, std::int64_t stride) { tensor.bf16 += row * stride; };
  skip(part.q, s.q_stride);
  skip(part.k, s.kv_stride);
  skip(part.v, s.kv_stride);
  skip(part.output, s.out_stride);
  skip(part.d_output, s.out_stride);
  part.logsumexp += row * s.heads;
  skip(part.d_q, s.q_stride);
  skip(part.d_k, s.kv_stride);
  skip(part.d_v, s.kv_stride);
  return part;
}

}  // namespace takt::backend::cuda
