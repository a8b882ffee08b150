// SPDX-License-Identifier: Apache-2.0
// Rounds matrices to bf16 with zeros between their rows: RoundBf16, and PackBf16, which places a
// weight's rows PackedBf16Stride(n) elements apart.
#include "worker/backend/cuda/kernels/device.cuh"
#include "worker/backend/cuda/kernels/kernels.h"

namespace takt::backend::cuda {
namespace {

constexpr int kTile = 32;
constexpr int kThreads = 256;
constexpr int kRowsAtOnce = kThreads / kTile;

// Each block has a row of the rounded matrix. Rows beyond those of the input are zeros.
template <bool kFours, class T>
__global__ __launch_bounds__(kThreads) void RoundKernel(const T* input, Bf16* rounded,
                                                        std::int64_t rows, std::int64_t columns,
                                                        std::int64_t input_stride,
                                                        std::int64_t rounded_stride) {
  const std::int64_t row = blockIdx.x;
  for (std::int64_t i = threadIdx.x * 4; i < rounded_stride; i += kThreads * 4) {
    Four x = {};
    if (row < rows && i < columns) x = Load<kFours>(input + row * input_stride, i, columns);
    Store<kFours>(rounded + row * rounded_stride, i, rounded_stride, x);
  }
}

// all_rows: the number of rows of the rounded matrix.
template <class T>
void LaunchRound(const T* input, const RoundBf16& op, std::int64_t all_rows,
                 const LaunchContext& context) {
  const Blocks blocks = {{static_cast<unsigned>(all_rows)}, kThreads};
  const std::int64_t input_stride = op.input_stride != 0 ? op.input_stride : op.columns;
  const std::int64_t rounded_stride = op.rounded_stride != 0 ? op.rounded_stride : op.columns;
  const bool fours =
      input_stride % 4 == 0 && rounded_stride % 4 == 0 && InFours(op.columns, input, op.rounded);
  Choose(fours, [&](auto kFours) {
    LaunchKernel(RoundKernel<decltype(kFours)::value, T>, blocks, context.stream, input, op.rounded,
                 op.rows, op.columns, input_stride, rounded_stride);
  });
}

// Block (tile of n, tile of k) goes through shared memory, so both sides are read and written along
// rows.
struct PackShared {
  float tile[kTile][kTile + 1];  // one more, so that columns lie in different banks
};
__global__ __launch_bounds__(kThreads) void PackTransposedKernel(PackBf16 op, std::int64_t rows,
                                                                 std::int64_t stride) {
  auto& tile = Shared<PackShared>().tile;
  const auto column = static_cast<int>(threadIdx.x % kTile);
  const auto first_row = static_cast<int>(threadIdx.x / kTile);
  const std::int64_t n_begin = static_cast<std::int64_t>(blockIdx.x) * kTile;
  const std::int64_t k_begin = static_cast<std::int64_t>(blockIdx.y) * kTile;
#pragma unroll
  for (int row = first_row; row < kTile; row += kRowsAtOnce) {
    const std::int64_t n = n_begin + row, k = k_begin + column;
    tile[row][column] = n < op.n && k < op.k ? op.b[n * op.k + k] : 0;
  }
  __syncthreads();
#pragma unroll
  for (int row = first_row; row < kTile; row += kRowsAtOnce) {
    const std::int64_t k = k_begin + row, n = n_begin + column;
    if (k < rows && n < stride) op.packed[k * stride + n] = Rounded(tile[column][row]);
  }
}

}  // namespace

void Launch(const PackBf16& op, const LaunchContext& context) {
  if (op.fp8 != Fp8Scaling::kNone) {
    PackFp8(op, context);
    return;
  }
  const std::int64_t rows = PackedBf16Stride(op.k), stride = PackedBf16Stride(op.n);
  if (op.transposed) {
    const Blocks blocks = {
        {static_cast<unsigned>(CeilDiv(op.n, kTile)), static_cast<unsigned>(CeilDiv(op.k, kTile))},
        kThreads,
        sizeof(PackShared)};
    LaunchKernel(PackTransposedKernel, blocks, context.stream, op, rows, stride);
    return;
  }
  const RoundBf16 round{
      .rounded = op.packed, .rows = op.k, .columns = op.n, .rounded_stride = stride};
  LaunchRound(op.b, round, rows, context);
}

void Launch(const RoundBf16& op, const LaunchContext& context) {
  From(op.input, [&](const auto* input) { LaunchRound(input, op, op.rows, context); });
}

}  // namespace takt::backend::cuda
