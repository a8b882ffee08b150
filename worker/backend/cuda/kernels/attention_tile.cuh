// SPDX-License-Identifier: Apache-2.0
// Rows of one head on their way to a tile in shared memory.
#pragma once

#include "worker/backend/cuda/kernels/device.cuh"

namespace takt::backend::cuda {

// From the row at `from` on.
struct HeadRows {
  const float* from;
  std::int64_t stride;
  std::int64_t count;  // that are there
  int head_size;
  bool fours;
};

// put(row, column, four) for every group of four of a tile, zeros where there are no rows or
// columns.
template <int kRows, int kHead, int kThreads, class F>
__device__ inline void FillTile(const HeadRows& rows, const F& put) {
  constexpr int kGroupsOfRow = kHead / 4;
#pragma unroll 4
  for (int item = static_cast<int>(threadIdx.x); item < kRows * kGroupsOfRow; item += kThreads) {
    const int row = item / kGroupsOfRow, i = item % kGroupsOfRow * 4;
    Four x = {};
    if (row < rows.count && i < rows.head_size) {
      const float* from = rows.from + row * rows.stride;
      x = rows.fours ? Load<true>(from, i, rows.head_size) : Load<false>(from, i, rows.head_size);
    }
    put(row, i, x);
  }
}

}  // namespace takt::backend::cuda
