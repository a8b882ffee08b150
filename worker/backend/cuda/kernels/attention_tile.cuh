// SPDX-License-Identifier: Apache-2.0
// Moves rows of one head to and from a tile in shared memory.
#pragma once

#include "worker/backend/cuda/kernels/device.cuh"

namespace takt::backend::cuda {

// The rows from the one at `from` on. kIn16Bytes<T> neighbours are aligned if `aligned`.
template <class T>
struct HeadRows {
  const T* from;
  std::int64_t stride;
  std::int64_t count;  // the rows that exist
  int head_size;
  bool aligned;
};

// Calls put(row, column, p) for every group of kCount elements of a tile. p points to its row, and
// is null where there are no rows or columns.
template <int kRows, int kHead, int kThreads, int kCount, class T, class F>
__device__ inline void ForGroupsOfTile(const HeadRows<T>& rows, const F& put) {
  constexpr int kGroupsOfRow = kHead / kCount;
#pragma unroll 4
  for (int item = static_cast<int>(threadIdx.x); item < kRows * kGroupsOfRow; item += kThreads) {
    const int row = item / kGroupsOfRow, i = item % kGroupsOfRow * kCount;
    const bool there = row < rows.count && i < rows.head_size;
    put(row, i, there ? rows.from + row * rows.stride : nullptr);
  }
}

// Writes the scores to the weights; each thread writes its own.
template <class T>
__device__ inline void Put(typename T::Weights& weights, const typename T::Scores& scores) {
#pragma unroll
  for (int a = 0; a < T::kRowsOfThread; ++a) {
#pragma unroll
    for (int b = 0; b < T::kKeysOfThread; ++b) {
      weights.rows[T::Row(a)][T::Key(b)] = Stored<typename T::Factor>(scores[a][b]);
    }
  }
}

}  // namespace takt::backend::cuda
