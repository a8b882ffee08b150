// SPDX-License-Identifier: Apache-2.0
// Converts matrices to E4M3 with a scale for each 128 values along the sum of a product or, of
// weights, for each 128 x 128. A warp has 128 values, which it reads from memory or, where the
// product sums over rows, from a tile in shared memory. Scales of squares are made before.
#include "worker/backend/cuda/kernels/device.cuh"
#include "worker/backend/cuda/kernels/fp8.cuh"
#include "worker/backend/cuda/kernels/kernels.h"

namespace takt::backend::cuda {
namespace {

constexpr int kWarps = kFp8Threads / kWarpSize;
constexpr std::int64_t kBlock = kFp8BlockSize;
static_assert(kBlock == kWarpSize * 4);

// Writes the codes of a block of row `outer` of the output. Each lane has four of its values.
template <bool kSquares>
__device__ inline void PutBlock(const QuantizeFp8& op, const Four& x, std::int64_t outer,
                                std::int64_t num_outer, std::int64_t block, std::int64_t stride,
                                LostValues& lost) {
  const auto lane = static_cast<std::int64_t>(threadIdx.x) % kWarpSize;
  float inverse = 0;
  if constexpr (kSquares) {
    inverse = op.inverse_scales[outer / kBlock * Fp8SquareStride(stride) + block];
  } else {
    float largest = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) largest = fmaxf(largest, FiniteMagnitude(x.v[k]));
    inverse = InverseScale(WarpMax(largest), /*e5m2=*/false);
    if (lane == 0) op.inverse_scales[block * num_outer + outer] = inverse;
  }
  std::uint8_t* output = op.output + outer * stride + block * kBlock + lane * 4;
  reinterpret_cast<Words<1>*>(output)->w[0] = EncodedFour</*kE5m2=*/false>(x, 1 / inverse, lost);
}

// Each warp has a block of a row.
template <bool kSquares, bool kFours, class T>
__global__ __launch_bounds__(kFp8Threads) void BlocksOfRowsKernel(QuantizeFp8 op, const T* input,
                                                                  std::int64_t input_stride,
                                                                  std::uint64_t* counts) {
  const std::int64_t stride = Fp8Stride(op.columns, op.scales), blocks = stride / kBlock;
  const std::int64_t item =
      static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarpSize;
  if (item >= op.rows * blocks) return;
  const std::int64_t row = item / blocks, block = item % blocks;
  const std::int64_t i = block * kBlock + threadIdx.x % kWarpSize * 4;
  Four x = {};
  if (i < op.columns) x = Load<kFours>(input + row * input_stride, i, op.columns);
  LostValues lost;
  PutBlock<kSquares>(op, x, row, op.rows, block, stride, lost);
  lost.AddTo(counts);
}

// Block (x, y) has columns [32 x, 32 x + 32) of rows [128 y, 128 y + 128).
constexpr int kTileColumns = 32;
struct ColumnsShared {
  float tile[kBlock][kTileColumns + 1];  // one more, so that columns lie in different banks
};
template <bool kSquares, class T>
__global__ __launch_bounds__(kFp8Threads) void BlocksOfColumnsKernel(QuantizeFp8 op, const T* input,
                                                                     std::int64_t input_stride,
                                                                     std::uint64_t* counts) {
  auto& tile = Shared<ColumnsShared>().tile;
  const auto lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const auto warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const std::int64_t column_begin = static_cast<std::int64_t>(blockIdx.x) * kTileColumns;
  const std::int64_t block = blockIdx.y;
#pragma unroll 4
  for (int i = warp; i < kBlock; i += kWarps) {
    const std::int64_t row = block * kBlock + i, column = column_begin + lane;
    const bool there = row < op.rows && column < op.columns;
    tile[i][lane] = there ? Widened(input[row * input_stride + column]) : 0;
  }
  __syncthreads();
  const std::int64_t stride = Fp8Stride(op.rows, op.scales);
  LostValues lost;
  for (int j = warp; j < kTileColumns; j += kWarps) {
    if (column_begin + j >= op.columns) break;
    const Four x = Each([&](int k) { return tile[lane * 4 + k][j]; });
    PutBlock<kSquares>(op, x, column_begin + j, op.columns, block, stride, lost);
  }
  lost.AddTo(counts);
}

// Block (x, y) makes the scale of the square at column 128 x and row 128 y.
template <class T>
__global__ __launch_bounds__(kFp8Threads) void SquaresKernel(QuantizeFp8 op, const T* input,
                                                             std::int64_t input_stride) {
  const std::int64_t column_begin = blockIdx.x * kBlock, row_begin = blockIdx.y * kBlock;
  float largest = 0;
#pragma unroll 4
  for (std::int64_t i = threadIdx.x; i < kBlock * kBlock; i += kFp8Threads) {
    const std::int64_t row = row_begin + i / kBlock, column = column_begin + i % kBlock;
    if (row < op.rows && column < op.columns)
      largest = fmaxf(largest, FiniteMagnitude(Widened(input[row * input_stride + column])));
  }
  largest = LargestOfBlock(largest);
  if (threadIdx.x != 0) return;
  const std::int64_t outer = op.sums_rows ? blockIdx.x : blockIdx.y;
  const std::int64_t inner = op.sums_rows ? blockIdx.y : blockIdx.x;
  const std::int64_t stride = Fp8Stride(op.sums_rows ? op.rows : op.columns, op.scales);
  op.inverse_scales[outer * Fp8SquareStride(stride) + inner] =
      InverseScale(largest, /*e5m2=*/false);
}

template <bool kSquares, class T>
void LaunchBlocks(const QuantizeFp8& op, const T* input, std::int64_t stride,
                  const LaunchContext& context) {
  if (op.sums_rows) {
    const Blocks blocks = {{static_cast<unsigned>(CeilDiv(op.columns, kTileColumns)),
                            static_cast<unsigned>(CeilDiv(op.rows, kBlock))},
                           kFp8Threads,
                           sizeof(ColumnsShared)};
    LaunchKernel(BlocksOfColumnsKernel<kSquares, T>, blocks, context.stream, op, input, stride,
                 CountsOf(op, context));
    return;
  }
  const std::int64_t items = op.rows * CeilDiv(op.columns, kBlock);
  const Blocks blocks = {{static_cast<unsigned>(CeilDiv(items, kWarps))}, kFp8Threads};
  Choose(stride % 4 == 0 && InFours(op.columns, input), [&](auto kFours) {
    LaunchKernel(BlocksOfRowsKernel<kSquares, decltype(kFours)::value, T>, blocks, context.stream,
                 op, input, stride, CountsOf(op, context));
  });
}

}  // namespace

void QuantizeBlocks(const QuantizeFp8& op, const LaunchContext& context) {
  const std::int64_t stride = op.input_stride != 0 ? op.input_stride : op.columns;
  From(op.input, [&]<class T>(const T* input) {
    if (op.scales == Fp8Scales::kVectors) {
      LaunchBlocks<false>(op, input, stride, context);
      return;
    }
    const Blocks squares = {{static_cast<unsigned>(CeilDiv(op.columns, kBlock)),
                             static_cast<unsigned>(CeilDiv(op.rows, kBlock))},
                            kFp8Threads,
                            sizeof(LargestShared)};
    LaunchKernel(SquaresKernel<T>, squares, context.stream, op, input, stride);
    LaunchBlocks<true>(op, input, stride, context);
  });
}

}  // namespace takt::backend::cuda
