// SPDX-License-Identifier: Apache-2.0
// What both directions of our own attention share: tiles of rows in shared memory, and products of
// tiles in registers. A block of 16 x 16 threads works on tiles of kRows rows; thread (y, x) has
// rows y * kPer + a of a product, and of them either keys x + 16 b (scores) or groups of four head
// columns at x * 4 + 64 c (outputs, gradients).
#pragma once

#include "worker/backend/cuda/kernels/device.cuh"
#include "worker/backend/cuda/kernels/kernels.h"

namespace takt::backend::cuda {

inline constexpr int kSide = 16;
inline constexpr int kAttentionThreads = kSide * kSide;
inline constexpr float kLog2E = 1.44269504088896341F;
inline constexpr float kLn2 = 0.693147180559945309F;
inline constexpr float kMasked = -3.402823466e+38F;  // e to it is 0, and it makes no NaN

// How factors of products are rounded.
struct F32Factors {
  __device__ static float Of(float x) { return x; }
};
struct Bf16Factors {
  __device__ static float Of(float x) { return Widened(Rounded(x)); }
};

// kHead: head sizes up to it, the rest of each row zeros.
template <int kHead, class Factors>
struct Tiling {
  static constexpr int kRows = kHead > 128 ? 32 : 64;  // so that shared memory of sm_80 suffices
  static constexpr int kPer = kRows / kSide;
  static constexpr int kGroups = kHead / (4 * kSide);
  static constexpr int kStride = kHead + 4;  // rows of neighbours lie in different banks
  static constexpr int kWeightStride = kRows + 4;

  struct alignas(16) Tile {
    float rows[kRows][kStride];
  };
  struct alignas(16) Weights {
    float rows[kRows][kWeightStride];
  };
  using Scores = float[kPer][kPer];
  using Columns = Four[kPer][kGroups];

  __device__ static int Y() { return static_cast<int>(threadIdx.x) / kSide; }
  __device__ static int X() { return static_cast<int>(threadIdx.x) % kSide; }
  __device__ static int Row(int a) { return Y() * kPer + a; }
  __device__ static int Key(int b) { return X() + kSide * b; }

  // Rows of one head, from the one at `from` on.
  struct Rows {
    const float* from;
    std::int64_t stride;
    std::int64_t count;  // that are there
    int head_size;
    bool fours;
  };
  __device__ static void Fill(Tile& tile, const Rows& rows) {
    constexpr int kGroupsOfRow = kHead / 4;
    for (int item = static_cast<int>(threadIdx.x); item < kRows * kGroupsOfRow;
         item += kAttentionThreads) {
      const int row = item / kGroupsOfRow, i = item % kGroupsOfRow * 4;
      Four x = {};
      if (row < rows.count && i < rows.head_size) {
        const float* from = rows.from + row * rows.stride;
        x = rows.fours ? Load<true>(from, i, rows.head_size) : Load<false>(from, i, rows.head_size);
      }
      *reinterpret_cast<Four*>(&tile.rows[row][i]) =
          Each([&](int k) { return Factors::Of(x.v[k]); });
    }
  }

  __device__ static Four At(const float* row, int i) {
    return *reinterpret_cast<const Four*>(row + i);
  }

  // scores[a][b] = a row of `left` times a row of `right`.
  __device__ static void Multiply(const Tile& left, const Tile& right, Scores& scores) {
#pragma unroll
    for (int a = 0; a < kPer; ++a) {
#pragma unroll
      for (int b = 0; b < kPer; ++b) scores[a][b] = 0;
    }
#pragma unroll 2
    for (int i = 0; i < kHead; i += 4) {
      Four l[kPer], r[kPer];
#pragma unroll
      for (int a = 0; a < kPer; ++a) l[a] = At(left.rows[Row(a)], i);
#pragma unroll
      for (int b = 0; b < kPer; ++b) r[b] = At(right.rows[Key(b)], i);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
#pragma unroll
        for (int a = 0; a < kPer; ++a) {
#pragma unroll
          for (int b = 0; b < kPer; ++b) scores[a][b] += l[a].v[k] * r[b].v[k];
        }
      }
    }
  }

  __device__ static void Zero(Columns& sums) {
#pragma unroll
    for (int a = 0; a < kPer; ++a) {
#pragma unroll
      for (int c = 0; c < kGroups; ++c) sums[a][c] = {};
    }
  }

  __device__ static void AddTimes(Columns& sums, int a, float weight,
                                  const Four (&values)[kGroups]) {
#pragma unroll
    for (int c = 0; c < kGroups; ++c) {
#pragma unroll
      for (int k = 0; k < 4; ++k) sums[a][c].v[k] += weight * values[c].v[k];
    }
  }

  __device__ static void LoadValues(const Tile& tile, int row, Four (&values)[kGroups]) {
#pragma unroll
    for (int c = 0; c < kGroups; ++c) values[c] = At(tile.rows[row], X() * 4 + 64 * c);
  }

  // sums += weights * tile.
  __device__ static void Accumulate(const Weights& weights, const Tile& tile, Columns& sums) {
#pragma unroll 1
    for (int i = 0; i < kRows; i += 4) {
      Four w[kPer];
#pragma unroll
      for (int a = 0; a < kPer; ++a) w[a] = At(weights.rows[Row(a)], i);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        Four values[kGroups];
        LoadValues(tile, i + k, values);
#pragma unroll
        for (int a = 0; a < kPer; ++a) AddTimes(sums, a, w[a].v[k], values);
      }
    }
  }

  // sums += weights^T * tile.
  __device__ static void AccumulateTransposed(const Weights& weights, const Tile& tile,
                                              Columns& sums) {
#pragma unroll 4
    for (int i = 0; i < kRows; ++i) {
      Four values[kGroups];
      LoadValues(tile, i, values);
#pragma unroll
      for (int a = 0; a < kPer; ++a) AddTimes(sums, a, weights.rows[i][Row(a)], values);
    }
  }

  __device__ static void Put(Weights& weights, const Scores& scores) {
#pragma unroll
    for (int a = 0; a < kPer; ++a) {
#pragma unroll
      for (int b = 0; b < kPer; ++b) weights.rows[Row(a)][Key(b)] = Factors::Of(scores[a][b]);
    }
  }

  // The sums of row a, times `factor`, to the row of one head at `to`.
  __device__ static void StoreRow(const Columns& sums, int a, float factor, float* to,
                                  int head_size, bool fours) {
#pragma unroll
    for (int c = 0; c < kGroups; ++c) {
      const int i = X() * 4 + 64 * c;
      if (i >= head_size) continue;
      const Four x = Each([&](int k) { return sums[a][c].v[k] * factor; });
      fours ? Store<true>(to, i, head_size, x) : Store<false>(to, i, head_size, x);
    }
  }
};

// Blocks are numbered so that those with the longest rows of the causal triangle begin first.
struct AttentionBlock {
  std::int64_t tile;  // of queries or keys
  std::int64_t batch, head;
};
__device__ inline AttentionBlock ReversedBlock(std::int64_t heads, std::int64_t tiles,
                                               std::int64_t items) {
  const std::int64_t item = blockIdx.x % items;
  return {tiles - 1 - blockIdx.x / items, item / heads, item % heads};
}
__device__ inline AttentionBlock ForwardBlock(std::int64_t heads, std::int64_t items) {
  const std::int64_t item = blockIdx.x % items;
  return {blockIdx.x / items, item / heads, item % heads};
}

// launch(Tiling) for a head size and kind of products.
template <class F>
void ForTiling(std::int64_t head_size, AttentionProducts products, const F& launch) {
  Choose(products == AttentionProducts::kBf16, [&](auto bf16) {
    using Factors = std::conditional_t<decltype(bf16)::value, Bf16Factors, F32Factors>;
    if (head_size <= 64) {
      launch(Tiling<64, Factors>());
    } else if (head_size <= 128) {
      launch(Tiling<128, Factors>());
    } else {
      launch(Tiling<256, Factors>());
    }
  });
}

inline bool StridesInFours(const AttentionShape& s) {
  return s.q_stride % 4 == 0 && s.kv_stride % 4 == 0 && s.out_stride % 4 == 0;
}

}  // namespace takt::backend::cuda
