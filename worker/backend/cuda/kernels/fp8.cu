// SPDX-License-Identifier: Apache-2.0
// Converts matrices to FP8 with one scale for all values of a matrix:
//   1. Blocks find the largest finite magnitudes of some rows each.
//   2. One block makes the scale from these. The largest value does not depend on an order.
//   3. Values are multiplied by the scale and rounded, row by row or, where the product sums over
//      rows, through tiles in shared memory.
// PackBf16 does the same for a weight, and stores the scale behind the values.
#include <algorithm>

#include "worker/backend/cuda/kernels/device.cuh"
#include "worker/backend/cuda/kernels/fp8.cuh"
#include "worker/backend/cuda/kernels/kernels.h"

namespace takt::backend::cuda {
namespace {

constexpr std::int64_t kMostPartials = kFp8ScratchBytes / static_cast<std::int64_t>(sizeof(float));

// Block b of `blocks` writes the largest finite magnitude of rows b, b + blocks, ...
template <class T>
__global__ __launch_bounds__(kFp8Threads) void LargestKernel(const T* input, std::int64_t rows,
                                                             std::int64_t columns,
                                                             std::int64_t stride,
                                                             std::int64_t blocks, float* partials) {
  float largest = 0;
  for (std::int64_t row = blockIdx.x; row < rows; row += blocks) {
#pragma unroll 4
    for (std::int64_t i = threadIdx.x; i < columns; i += kFp8Threads)
      largest = fmaxf(largest, FiniteMagnitude(Widened(input[row * stride + i])));
  }
  largest = LargestOfBlock(largest);
  if (threadIdx.x == 0) partials[blockIdx.x] = largest;
}

__global__ __launch_bounds__(kFp8Threads) void ScaleKernel(const float* partials,
                                                           std::int64_t count, bool e5m2,
                                                           float* inverse_scales) {
  float largest = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += kFp8Threads)
    largest = fmaxf(largest, partials[i]);
  largest = LargestOfBlock(largest);
  if (threadIdx.x == 0) *inverse_scales = InverseScale(largest, e5m2);
}

// Each block has a row, with zeros behind its columns.
template <bool kE5m2, bool kFours, class T>
__global__ __launch_bounds__(kFp8Threads) void ConvertRowsKernel(QuantizeFp8 op, const T* input,
                                                                 std::int64_t stride,
                                                                 std::uint64_t* counts) {
  LostValues lost;
  const std::int64_t row = blockIdx.x, length = Fp8Stride(op.columns, op.scales);
  const float scale = 1 / *op.inverse_scales;  // exact, because it is a power of two
  std::uint8_t* output = op.output + row * length;
  for (std::int64_t i = threadIdx.x * 4; i < length; i += kFp8Threads * 4) {
    Four x = {};
    if (i < op.columns) x = Load<kFours>(input + row * stride, i, op.columns);
    reinterpret_cast<Words<1>*>(output + i)->w[0] = EncodedFour<kE5m2>(x, scale, lost);
  }
  lost.AddTo(counts);
}

// Block (tile of columns, tile of rows) goes through shared memory.
constexpr int kTile = 32;
constexpr int kRowsAtOnce = kFp8Threads / kTile;
struct TileShared {
  float tile[kTile][kTile + 1];  // one more, so that columns lie in different banks
};
template <bool kE5m2, class T>
__global__ __launch_bounds__(kFp8Threads) void ConvertColumnsKernel(QuantizeFp8 op, const T* input,
                                                                    std::int64_t stride,
                                                                    std::uint64_t* counts) {
  LostValues lost;
  auto& tile = Shared<TileShared>().tile;
  const auto lane = static_cast<int>(threadIdx.x) % kTile;
  const auto first = static_cast<int>(threadIdx.x) / kTile;
  const std::int64_t column_begin = static_cast<std::int64_t>(blockIdx.x) * kTile;
  const std::int64_t row_begin = static_cast<std::int64_t>(blockIdx.y) * kTile;
#pragma unroll
  for (int i = first; i < kTile; i += kRowsAtOnce) {
    const std::int64_t row = row_begin + i, column = column_begin + lane;
    const bool there = row < op.rows && column < op.columns;
    tile[i][lane] = there ? Widened(input[row * stride + column]) : 0;
  }
  __syncthreads();
  const float scale = 1 / *op.inverse_scales;
  const std::int64_t length = Fp8Stride(op.rows, op.scales), row = row_begin + lane;
#pragma unroll
  for (int i = first; i < kTile; i += kRowsAtOnce) {
    const std::int64_t column = column_begin + i;
    if (column >= op.columns || row >= length) continue;
    const std::uint8_t code = Encoded<kE5m2>(tile[lane][i], scale);
    lost.Count(tile[lane][i], code);
    op.output[column * length + row] = code;
  }
  lost.AddTo(counts);
}

template <bool kE5m2, class T>
void LaunchConvert(const QuantizeFp8& op, const T* input, std::int64_t stride,
                   const LaunchContext& context) {
  if (op.sums_rows) {
    const Blocks blocks = {{static_cast<unsigned>(CeilDiv(op.columns, kTile)),
                            static_cast<unsigned>(CeilDiv(Fp8Stride(op.rows, op.scales), kTile))},
                           kFp8Threads,
                           sizeof(TileShared)};
    LaunchKernel(ConvertColumnsKernel<kE5m2, T>, blocks, context.stream, op, input, stride,
                 CountsOf(op, context));
    return;
  }
  const Blocks blocks = {{static_cast<unsigned>(op.rows)}, kFp8Threads};
  Choose(stride % 4 == 0 && InFours(op.columns, input), [&](auto kFours) {
    LaunchKernel(ConvertRowsKernel<kE5m2, decltype(kFours)::value, T>, blocks, context.stream, op,
                 input, stride, CountsOf(op, context));
  });
}

}  // namespace

void Launch(const QuantizeFp8& op, const LaunchContext& context) {
  if (op.scales != Fp8Scales::kOne) {
    QuantizeBlocks(op, context);
    return;
  }
  const std::int64_t stride = op.input_stride != 0 ? op.input_stride : op.columns;
  const std::int64_t count = std::min(op.rows, kMostPartials);
  auto* const partials = static_cast<float*>(context.scratch);
  From(op.input, [&]<class T>(const T* input) {
    LaunchKernel(LargestKernel<T>,
                 Blocks{{static_cast<unsigned>(count)}, kFp8Threads, sizeof(LargestShared)},
                 context.stream, input, op.rows, op.columns, stride, count, partials);
    LaunchKernel(ScaleKernel, Blocks{{1}, kFp8Threads, sizeof(LargestShared)}, context.stream,
                 static_cast<const float*>(partials), count, op.e5m2, op.inverse_scales);
    Choose(op.e5m2,
           [&](auto kE5m2) { LaunchConvert<decltype(kE5m2)::value>(op, input, stride, context); });
  });
}

void PackFp8(const PackBf16& op, const LaunchContext& context) {
  const Fp8Scales scales = op.fp8 == Fp8Scaling::kBlock ? Fp8Scales::kSquares : Fp8Scales::kOne;
  const PackedFp8 packed = PackedFp8Of(op.packed, op.k, op.n, scales);
  Launch(QuantizeFp8{.input = op.b,
                     .operand = Fp8Operand::kWeight,
                     .sums_rows = !op.transposed,
                     .scales = scales,
                     .rows = op.transposed ? op.n : op.k,
                     .columns = op.transposed ? op.k : op.n,
                     .output = const_cast<std::uint8_t*>(packed.codes),
                     .inverse_scales = const_cast<float*>(packed.inverse_scales)},
         context);
}

}  // namespace takt::backend::cuda
