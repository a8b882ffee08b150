// SPDX-License-Identifier: Apache-2.0
// What both directions of our own attention share.
#pragma once

#include "worker/backend/cuda/kernels/device.cuh"
#include "worker/backend/cuda/kernels/kernels.h"
#include "worker/backend/cuda/kernels/scalar_tiling.cuh"
#include "worker/backend/cuda/kernels/tensor_tiling.cuh"

namespace takt::backend::cuda {

inline constexpr float kLog2E = 1.44269504088896341F;
inline constexpr float kLn2 = 0.693147180559945309F;
inline constexpr float kMasked = -3.402823466e+38F;  // e to it is 0, and it makes no NaN

template <class T>
__device__ inline void Zero(typename T::Columns& sums) {
#pragma unroll
  for (int a = 0; a < T::kRowsOfThread; ++a) {
#pragma unroll
    for (int c = 0; c < T::kColumnsOfThread; ++c) sums[a][c] = 0;
  }
}

// A tile of a head. Those with the longest rows or columns of the causal triangle begin first.
struct AttentionBlock {
  std::int64_t tile;  // of queries or keys
  std::int64_t batch, head;
};
__device__ inline AttentionBlock BlockOfKeys(std::int64_t kv_heads, std::int64_t items) {
  const std::int64_t item = blockIdx.x % items;
  return {blockIdx.x / items, item / kv_heads, item % kv_heads};
}
__device__ inline AttentionBlock BlockOfQueries(std::int64_t heads, std::int64_t items,
                                                std::int64_t tiles) {
  AttentionBlock block = BlockOfKeys(heads, items);
  block.tile = tiles - 1 - block.tile;
  return block;
}

// launch(tiling) for a shape.
template <class F>
void ForTiling(const AttentionShape& shape, const F& launch) {
  const bool bf16 = shape.bf16;
  if (shape.head_size <= 64) {
    bf16 ? launch(TensorTiling<64>()) : launch(ScalarTiling<64, F32Factors>());
  } else if (shape.head_size <= 128) {
    bf16 ? launch(TensorTiling<128>()) : launch(ScalarTiling<128, F32Factors>());
  } else {  // two gradients of such rows are more than the registers of a TensorTiling hold
    bf16 ? launch(ScalarTiling<256, Bf16Factors>()) : launch(ScalarTiling<256, F32Factors>());
  }
}

inline bool StridesInFours(const AttentionShape& s) {
  return s.q_stride % 4 == 0 && s.kv_stride % 4 == 0 && s.out_stride % 4 == 0;
}

}  // namespace takt::backend::cuda
