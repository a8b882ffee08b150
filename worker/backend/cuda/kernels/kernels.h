// SPDX-License-Identifier: Apache-2.0
// Our own kernels on the GPU: every op of ops.h except products of matrices and those of experts.
// This file needs no CUDA headers.
//
// These rules hold for every launch beside those of ops.h:
// - `op` has passed ValidateOp. The device writes through all its pointers, also those that ops.h
//   places in host memory (CrossEntropy::loss_sum, the sums of SumOfSquares): they are device
//   memory or pinned host memory.
// - It returns when the op is enqueued on the stream; cudaGetLastError then returns the error of
//   the launch itself. It allocates nothing, waits for nothing, and may be captured into a graph.
// - `scratch` has at least ScratchBytes(op), is 256-byte aligned, and belongs to the launch until
//   it is done; launches on one stream may share it. Its contents before the launch do not matter.
// - Bits of results depend on the data and on the sizes alone. They do not depend on the device's
//   number of multiprocessors, on addresses or on their alignment. No atomics add.
// - Pointers that are 16-byte aligned, with rows of a multiple of 16 bytes, are read and written
//   16 bytes at a time. Others are read by element, which is slower and gives the same bits. Where
//   bf16 is beside f32 (norms, sums of columns), it is 8 bytes of the one and 16 of the other.
#pragma once

#include <cstdint>

#include "worker/backend/ops.h"

struct CUstream_st;  // cudaStream_t points to one

namespace takt::backend::cuda {

struct LaunchContext {
  CUstream_st* stream = nullptr;
  void* scratch = nullptr;
};

// Returns 0 for ops that need none. Products of matrices are among these: cuBLASLt's workspace is
// separate.
std::int64_t ScratchBytes(const Op& op);

void Launch(const BiasGrad& op, const LaunchContext& context);
void Launch(const LayerNormForward& op, const LaunchContext& context);
void Launch(const LayerNormBackwardInput& op, const LaunchContext& context);
void Launch(const LayerNormBackwardWeights& op, const LaunchContext& context);
void Launch(const RmsNormForward& op, const LaunchContext& context);
void Launch(const RmsNormBackwardInput& op, const LaunchContext& context);
void Launch(const RmsNormBackwardWeights& op, const LaunchContext& context);
void Launch(const Rotary& op, const LaunchContext& context);
void Launch(const SwigluForward& op, const LaunchContext& context);
void Launch(const SwigluBackward& op, const LaunchContext& context);
void Launch(const GeluForward& op, const LaunchContext& context);
void Launch(const GeluBackward& op, const LaunchContext& context);
void Launch(const CachedAttention& op, const LaunchContext& context);
void Launch(const EmbeddingForward& op, const LaunchContext& context);
// Takes at most kMaxEmbeddingRows rows (batch * context).
void Launch(const EmbeddingBackward& op, const LaunchContext& context);
void Launch(const SoftmaxBlock& op, const LaunchContext& context);
void Launch(const CrossEntropy& op, const LaunchContext& context);
void Launch(const CrossEntropyGradient& op, const LaunchContext& context);
// Launches few kernels for many tensors.
void Launch(const AdamwUpdate& op, const LaunchContext& context);
void Launch(const LionUpdate& op, const LaunchContext& context);
void Launch(const SgdUpdate& op, const LaunchContext& context);
void Launch(const SumOfSquares& op, const LaunchContext& context);
void Launch(const Fill& op, const LaunchContext& context);
void Launch(const Copy& op, const LaunchContext& context);
void Launch(const Add& op, const LaunchContext& context);

inline constexpr std::int64_t kMaxEmbeddingRows = std::int64_t{1} << 24;

// packed is row-major [k,n], with rows PackedBf16Stride(n) elements apart, and zeros between them
// and in further rows up to a multiple of 8, whatever the order of the source. It is 16-byte
// aligned.
constexpr std::int64_t PackedBf16Stride(std::int64_t n) {
  constexpr std::int64_t kPerVector = 8;  // so that every row is 16-byte aligned
  return (n + kPerVector - 1) / kPerVector * kPerVector;
}
void Launch(const PackBf16& op, const LaunchContext& context);

// rounded = input [rows,columns] to nearest, ties to even, with zeros between its rows. It serves
// an operand that no product in bf16 can read where it is.
struct RoundBf16 {
  Operand input;
  Bf16* rounded = nullptr;
  std::int64_t rows = 0, columns = 0;
  std::int64_t input_stride = 0, rounded_stride = 0;  // 0: columns
};
void Launch(const RoundBf16& op, const LaunchContext& context);

// x[rows,columns] += bias[columns], in place. It is used where a product's epilogue does not add
// the bias.
struct AddBias {
  Output x;
  const float* bias = nullptr;
  std::int64_t rows = 0, columns = 0;
  std::int64_t stride = 0;  // of x; 0: columns
};
void Launch(const AddBias& op, const LaunchContext& context);

// Our own attention, for head sizes up to kMaxHeadSize. In bf16, probabilities and gradients of
// scores are rounded where they are multiplied, except for head sizes above 128.
inline constexpr std::int64_t kMaxHeadSize = 256;
void Launch(const AttentionForward& op, const LaunchContext& context);
void Launch(const AttentionBackward& op, const LaunchContext& context);

}  // namespace takt::backend::cuda
