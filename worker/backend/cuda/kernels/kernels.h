// SPDX-License-Identifier: Apache-2.0
// Our own kernels on the GPU: every op of ops.h except products of matrices. Products of experts
// are ours, too. This file needs no CUDA headers.
//
// These rules hold for every launch beside those of ops.h:
// - `op` has passed ValidateOp. The device writes through all its pointers, also those that ops.h
//   places in host memory (CrossEntropy::loss_sum, the sums of SumOfSquares,
//   CountExpertRows::counts): they are device memory or pinned host memory.
// - It returns when the op is enqueued on the stream; cudaGetLastError then returns the error of
//   the launch itself. It allocates nothing, waits for nothing, and may be captured into a graph.
// - `scratch` has at least ScratchBytes(op), is 256-byte aligned, and belongs to the launch until
//   it is done; launches on one stream may share it. Its contents before the launch do not matter.
// - Bits of results depend on the data and on the sizes alone, but for attention in f32 also on
//   whether shared_bytes is below kLargeTilesBytes. They do not depend on the device's
//   number of multiprocessors, on addresses or on their alignment. Atomics add only to
//   LaunchContext::fp8_counts and block_counts, which are integers.
// - Pointers that are 16-byte aligned, with rows of a multiple of 16 bytes, are read and written
//   16 bytes at a time. Others are read by element, which is slower and gives the same bits. Where
//   bf16 may be beside f32 (norms, embeddings, sums of columns), it is 8 bytes of bf16 and 16 of
//   f32.
#pragma once

#include <cstdint>

#include "worker/backend/ops.h"

struct CUstream_st;  // cudaStream_t points to one

namespace takt::backend::cuda {

// What a block of attention may take: of compute capability 8.0, 8.7, 9.0 and 10.0; and of 8.6, 8.9
// and 12.0.
inline constexpr std::int64_t kLargeTilesBytes = std::int64_t{163} << 10;
inline constexpr std::int64_t kSmallTilesBytes = std::int64_t{99} << 10;

struct LaunchContext {
  CUstream_st* stream = nullptr;
  void* scratch = nullptr;
  // The shared memory that a block of this device may have. Attention of tensors in f32 takes
  // smaller tiles where it is less than kLargeTilesBytes, and never more than kSmallTilesBytes.
  std::int64_t shared_bytes = kLargeTilesBytes;
  // [operands, 2] For each Fp8Operand: how many values became the largest of a format, and how many
  // became zero that were not (fp8.h). Conversions to FP8 add to the counts. Null: nothing is
  // counted.
  std::uint64_t* fp8_counts = nullptr;
  // [kBlockCounts] Zeros, which are zeros again when the launch is done. Launches on one stream may
  // share them. Ops that sum over blocks count there which blocks have started and ended. Null: for
  // other ops only.
  std::uint32_t* block_counts = nullptr;
};
inline constexpr std::int64_t kBlockCounts = 2;

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
// Each launch updates at most so many tensors, as more would not fit into the 4 KiB of a kernel's
// arguments.
inline constexpr int kTensorsOfUpdate = 56;
void Launch(const AdamwUpdate& op, const LaunchContext& context);
void Launch(const LionUpdate& op, const LaunchContext& context);
void Launch(const SgdUpdate& op, const LaunchContext& context);
void Launch(const FeedBackError& op, const LaunchContext& context);
void Launch(const SumOfSquares& op, const LaunchContext& context);
void Launch(const Fill& op, const LaunchContext& context);
void Launch(const Copy& op, const LaunchContext& context);
void Launch(const Add& op, const LaunchContext& context);

// An op of experts reads on the device how many rows each of them has. Matrices in bf16 are those
// that PackBf16 of this file has written.
void Launch(const RouteTokens& op, const LaunchContext& context);
void Launch(const RouteTokensBackward& op, const LaunchContext& context);
void Launch(const CountExpertRows& op, const LaunchContext& context);
void Launch(const AddExpertRows& op, const LaunchContext& context);
void Launch(const BalanceExperts& op, const LaunchContext& context);
void Launch(const ExpertSwigluForward& op, const LaunchContext& context);
void Launch(const ExpertSwigluBackward& op, const LaunchContext& context);
void Launch(const ExpertMatmul& op, const LaunchContext& context);
// Does the same for experts [first, end) only. Call it for the experts before them first. It takes
// one launch for each kMostExpertsOfLaunch of them or, where they are added to tokens, one for
// each.
inline constexpr int kMostExpertsOfLaunch = 128;
void Launch(const ExpertMatmul& op, std::int64_t first, std::int64_t end,
            const LaunchContext& context);
void Launch(const ExpertMatmulTransposed& op, const LaunchContext& context);
void Launch(const PackTokens& op, const LaunchContext& context);
void Launch(const AddRowsToTokens& op, const LaunchContext& context);
void Launch(const PackPairs& op, const LaunchContext& context);
void Launch(const UnpackPairs& op, const LaunchContext& context);

// The parts of MuonUpdate between its products (muon.h), by what they compute.
enum class MuonPart : std::uint8_t {
  kDirection,   // m, and the first X, which is not normalised yet
  kNormalize,   // the first X
  kPolynomial,  // factor, from squared and its square
  kMove,        // the parameter, by the last X
};
void Launch(const MuonUpdate& op, MuonPart part, const LaunchContext& context);

inline constexpr std::int64_t kMaxEmbeddingRows = std::int64_t{1} << 24;

// packed is row-major [k,n], with rows PackedBf16Stride(n) elements apart, and zeros between them
// and in further rows up to a multiple of 8, whatever the order of the source. It is 16-byte
// aligned.
constexpr std::int64_t PackedBf16Stride(std::int64_t n) {
  constexpr std::int64_t kPerVector = 8;  // so that every row is 16-byte aligned
  return (n + kPerVector - 1) / kPerVector * kPerVector;
}
// If the op rounds to FP8, packed is a PackedFp8 instead.
void Launch(const PackBf16& op, const LaunchContext& context);

// Says which values of a matrix in FP8 share a scale, and how cuBLASLt wants the scales stored.
enum class Fp8Scales : std::uint8_t {
  kOne,      // all values
  kVectors,  // 128 values along the sum: [blocks along the sum, rows of the output]
  // 128 x 128: [blocks of rows of the output, Fp8SquareStride], blocks along the sum first
  kSquares,
};

// Returns the distance, in elements, between rows of `length` codes. The library reads whole
// vectors, and we give it whole blocks.
constexpr std::int64_t Fp8Stride(std::int64_t length, Fp8Scales scales) {
  const std::int64_t unit = scales == Fp8Scales::kOne ? 16 : kFp8BlockSize;
  return (length + unit - 1) / unit * unit;
}
// Returns the distance, in scales, between the scales of two rows of squares. stride: of the codes.
constexpr std::int64_t Fp8SquareStride(std::int64_t stride) {
  return (stride / kFp8BlockSize + 3) / 4 * 4;
}
// Returns the number of scales of `rows` rows of codes. stride: of the codes.
constexpr std::int64_t NumFp8Scales(std::int64_t rows, std::int64_t stride, Fp8Scales scales) {
  if (scales == Fp8Scales::kOne) return 1;
  if (scales == Fp8Scales::kVectors) return stride / kFp8BlockSize * rows;
  return (rows + kFp8BlockSize - 1) / kFp8BlockSize * Fp8SquareStride(stride);
}

// Converts a matrix to FP8 by the rules of fp8.h. In the output the values that a product sums are
// contiguous, because tensor cores of compute capability 8.9 and 9.0 read no other order.
struct QuantizeFp8 {
  Operand input;                                 // [rows,columns]
  Fp8Operand operand = Fp8Operand::kActivation;  // where values count that the format cannot hold
  bool sums_rows = false;  // the product sums over rows: `output` is the transpose
  Fp8Scales scales = Fp8Scales::kOne;
  bool e5m2 = false;                                     // with kOne alone
  std::int64_t rows = 0, columns = 0, input_stride = 0;  // 0: columns
  // [rows, columns] or, if it sums rows, [columns, rows]. Its own rows are Fp8Stride apart, with
  // zeros between them. It is 16-byte aligned.
  std::uint8_t* output = nullptr;
  float* inverse_scales = nullptr;  // the value of a code is the code times this
};
inline constexpr std::int64_t kFp8ScratchBytes = 4096;
// The context's scratch has kFp8ScratchBytes.
void Launch(const QuantizeFp8& op, const LaunchContext& context);
// Does the same where `scales` is not kOne. It needs no scratch.
void QuantizeBlocks(const QuantizeFp8& op, const LaunchContext& context);

// A weight [k,n] in FP8, in the memory of the same weight packed in bf16: [n,k], rows Fp8Stride
// apart, and then the scales. With squares k is a multiple of 128.
struct PackedFp8 {
  const std::uint8_t* codes = nullptr;
  const float* inverse_scales = nullptr;
};
inline PackedFp8 PackedFp8Of(const Bf16* packed, std::int64_t k, std::int64_t n, Fp8Scales scales) {
  const auto* const codes = reinterpret_cast<const std::uint8_t*>(packed);
  return {.codes = codes,
          .inverse_scales = reinterpret_cast<const float*>(codes + n * Fp8Stride(k, scales))};
}
// Packs a weight as PackedFp8. The op must round to FP8. The context's scratch has
// kFp8ScratchBytes.
void PackFp8(const PackBf16& op, const LaunchContext& context);

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

// sums[i] += addends[i] for each of two vectors.
struct AddSums {
  struct Vector {
    const float* addends = nullptr;
    float* sums = nullptr;
    std::int64_t count = 0;  // may be 0
  };
  Vector first, second;
};
void Launch(const AddSums& op, const LaunchContext& context);

// Our own attention, for head sizes up to kMaxHeadSize. In bf16, probabilities and gradients of
// scores are rounded where they are multiplied, except for head sizes above 128.
inline constexpr std::int64_t kMaxHeadSize = 256;
void Launch(const AttentionForward& op, const LaunchContext& context);
void Launch(const AttentionBackward& op, const LaunchContext& context);

}  // namespace takt::backend::cuda
