// SPDX-License-Identifier: Apache-2.0
// PackBf16: a weight rounded to bf16, row-major [k,n] with rows of PackedBf16Stride(n) elements.
#include "worker/backend/cuda/kernels/device.cuh"
#include "worker/backend/cuda/kernels/kernels.h"

namespace takt::backend::cuda {
namespace {

constexpr int kTile = 32;
constexpr int kThreads = 256;
constexpr int kRowsAtOnce = kThreads / kTile;

// stride: PackedBf16Stride(n).
// A block has a row that is stored as it is packed.
template <bool kFours>
__global__ __launch_bounds__(kThreads) void PackKernel(PackBf16 op, std::int64_t stride) {
  const std::int64_t row = blockIdx.x;
  for (std::int64_t i = threadIdx.x * 4; i < stride; i += kThreads * 4) {
    Four x = {};
    if (i < op.n) x = Load<kFours>(op.b + row * op.n, i, op.n);
    Store<true>(op.packed + row * stride, i, stride, x);
  }
}

// Block (tile of n, tile of k), through shared memory: both sides are read and written along rows.
struct PackShared {
  float tile[kTile][kTile + 1];  // one more: columns lie in different banks
};
__global__ __launch_bounds__(kThreads) void PackTransposedKernel(PackBf16 op, std::int64_t stride) {
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
    if (k < op.k && n < stride) op.packed[k * stride + n] = Rounded(tile[column][row]);
  }
}

}  // namespace

void Launch(const PackBf16& op, const LaunchContext& context) {
  const std::int64_t stride = PackedBf16Stride(op.n);
  if (op.transposed) {
    const Blocks blocks = {
        {static_cast<unsigned>(CeilDiv(op.n, kTile)), static_cast<unsigned>(CeilDiv(op.k, kTile))},
        kThreads,
        sizeof(PackShared)};
    LaunchKernel(PackTransposedKernel, blocks, context.stream, op, stride);
    return;
  }
  const Blocks blocks = {{static_cast<unsigned>(op.k)}, kThreads};
  Choose(InFours(op.n, op.b), [&](auto kFours) {
    LaunchKernel(PackKernel<decltype(kFours)::value>, blocks, context.stream, op, stride);
  });
}

}  // namespace takt::backend::cuda
