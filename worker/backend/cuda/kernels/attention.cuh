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

// Says which keys the queries of a sequence see: the last ones up to their own, at most as many as
// the window has, and none before their document.
class KeysSeen {
 public:
  // starts: of all sequences, or null.
  __device__ KeysSeen(const AttentionShape& s, const std::int32_t* starts, std::int64_t batch)
      : window_(static_cast<int>(s.window > 0 ? s.window : s.context)),
        context_(s.context),
        starts_(starts != nullptr ? starts + batch * s.context : nullptr) {}

  // Returns where the first tile of `rows` keys begins that has a key which query q_begin sees. No
  // later query sees an earlier key.
  __device__ std::int64_t FirstTile(std::int64_t q_begin, int rows) const {
    std::int64_t first = q_begin + 1 - window_;
    if (starts_ != nullptr && starts_[q_begin] > first) first = starts_[q_begin];
    return first > 0 ? first / rows * rows : 0;
  }
  // Returns where the queries end, in tiles of `rows` from k_begin on, that see some of `rows` keys
  // from there on.
  __device__ std::int64_t EndOfQueries(std::int64_t k_begin, int rows) const {
    const std::int64_t k_end = k_begin + rows;
    const std::int64_t end = k_end - 1 + window_ < context_ ? k_end - 1 + window_ : context_;
    if (starts_ == nullptr) return end;
    std::int64_t q_begin = k_end;
    while (q_begin < end && starts_[q_begin] < k_end) q_begin += rows;
    return q_begin < end ? q_begin : end;
  }
  // Returns whether each query of a tile of `rows` sees each key of a tile.
  __device__ bool Whole(std::int64_t q_begin, std::int64_t k_begin, int rows) const {
    if (q_begin <= k_begin || q_begin - k_begin + rows > window_) return false;
    const std::int64_t q_end = q_begin + rows < context_ ? q_begin + rows : context_;
    return starts_ == nullptr || starts_[q_end - 1] <= k_begin;
  }
  // Returns where the document of a query begins, counted from k_begin. A query beyond the context
  // is of a document that begins with the sequence.
  __device__ int DocumentFrom(std::int64_t query, std::int64_t k_begin) const {
    const std::int64_t start = starts_ != nullptr && query < context_ ? starts_[query] : 0;
    return static_cast<int>(start - k_begin);
  }
  // Returns whether the window of a query shows the key that is `distance` before it.
  __device__ bool Sees(int distance) const { return distance >= 0 && distance < window_; }

 private:
  const int window_;
  const std::int64_t context_;
  const std::int32_t* const starts_;
};

// Calls launch(tiling) with the scalar tiling for the device's shared memory.
template <int kHead, class E, class F>
void ForScalarTiling(const LaunchContext& context, const F& launch) {
  constexpr int kLarge = kLargeTileRows<kHead>, kSmall = kSmallTileRows<kHead>;
  if (context.shared_bytes < kLargeTilesBytes) {
    launch(ScalarTiling<kHead, E, kSmall>());
  } else {
    launch(ScalarTiling<kHead, E, kLarge>());
  }
}

// Calls launch(tiling) with the tiling for a shape and the type of its tensors.
template <class F>
void ForTiling(const AttentionShape& shape, bool bf16, const LaunchContext& context,
               const F& launch) {
  if (shape.head_size <= 64) {
    bf16 ? launch(TensorTiling<64>()) : ForScalarTiling<64, float>(context, launch);
  } else if (shape.head_size <= 128) {
    bf16 ? launch(TensorTiling<128>()) : ForScalarTiling<128, float>(context, launch);
  } else {  // two gradients of such rows need more registers than a TensorTiling has
    bf16 ? ForScalarTiling<256, Bf16>(context, launch)
         : ForScalarTiling<256, float>(context, launch);
  }
}

// Holds the shared memory of a kernel to what every device with such tiles has.
template <class T, class Memory>
constexpr bool FitsTiles() {
  constexpr auto kBytes = static_cast<std::int64_t>(sizeof(Memory));
  constexpr bool kIsLarge =
      sizeof(typename T::Factor) == sizeof(float) && T::kRows == T::kLargeRows;
  return kBytes <= (kIsLarge ? kLargeTilesBytes : kSmallTilesBytes);
}

// Returns whether tensors of T in this shape consist of aligned groups.
template <class T, class... Tensors>
bool InGroupsOf16Bytes(const AttentionShape& s, const Tensors&... tensors) {
  constexpr int kCount = kIn16Bytes<T>;
  return s.q_stride % kCount == 0 && s.kv_stride % kCount == 0 && s.out_stride % kCount == 0 &&
         InGroups<kCount>(s.head_size, As<T>(tensors)...);
}

}  // namespace takt::backend::cuda
