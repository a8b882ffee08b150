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

// A tile of a head. Tiles with the longest rows or columns of the causal triangle begin first.
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

// Says which keys queries see: the last ones up to their own, at most as many as the window has.
class KeysSeen {
 public:
  __device__ explicit KeysSeen(const AttentionShape& s)
      : window_(static_cast<int>(s.window > 0 ? s.window : s.context)) {}

  // Returns where the first tile of `rows` keys begins that has a key which query q_begin sees.
  __device__ std::int64_t FirstTile(std::int64_t q_begin, int rows) const {
    const std::int64_t first = q_begin + 1 - window_;
    return first > 0 ? first / rows * rows : 0;
  }
  // Returns where the queries end that see some of `rows` keys from k_begin on.
  __device__ std::int64_t EndOfQueries(std::int64_t k_begin, int rows, std::int64_t context) const {
    const std::int64_t end = k_begin + rows - 1 + window_;
    return end < context ? end : context;
  }
  // Returns whether each query of a tile of `rows` sees each key of a tile that begins `distance`
  // before it.
  __device__ bool Whole(int distance, int rows) const {
    return distance > 0 && distance + rows <= window_;
  }
  // Returns whether a query sees the key that is `distance` before it.
  __device__ bool Sees(int distance) const { return distance >= 0 && distance < window_; }

 private:
  const int window_;
};

// Calls launch(tiling) with the tiling for a shape and the type of its tensors.
template <class F>
void ForTiling(const AttentionShape& shape, bool bf16, const F& launch) {
  if (shape.head_size <= 64) {
    bf16 ? launch(TensorTiling<64>()) : launch(ScalarTiling<64, float>());
  } else if (shape.head_size <= 128) {
    bf16 ? launch(TensorTiling<128>()) : launch(ScalarTiling<128, float>());
  } else {  // two gradients of such rows need more registers than a TensorTiling has
    bf16 ? launch(ScalarTiling<256, Bf16>()) : launch(ScalarTiling<256, float>());
  }
}

// Returns whether tensors of T in this shape consist of aligned groups.
template <class T, class... Tensors>
bool InGroupsOf16Bytes(const AttentionShape& s, const Tensors&... tensors) {
  constexpr int kCount = kIn16Bytes<T>;
  return s.q_stride % kCount == 0 && s.kv_stride % kCount == 0 && s.out_stride % kCount == 0 &&
         InGroups<kCount>(s.head_size, As<T>(tensors)...);
}

}  // namespace takt::backend::cuda
