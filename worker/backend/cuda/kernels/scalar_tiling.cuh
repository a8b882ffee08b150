// SPDX-License-Identifier: Apache-2.0
// Multiplies tiles of rows on ordinary cores, with 16 x 16 threads. Thread (y, x) has rows y *
// kRowsOfThread + a of a product, and of them either keys x + 16 b (scores) or groups of four head
// columns at x * 4 + 64 g (outputs, gradients).
#pragma once

#include "worker/backend/cuda/kernels/attention_tile.cuh"

namespace takt::backend::cuda {

// The largest tiles that fit kLargeTilesBytes of shared memory.
template <int kHead>
inline constexpr int kLargeTileRows = kHead > 128 ? 32 : 64;
// The same for kSmallTilesBytes.
template <int kHead>
inline constexpr int kSmallTileRows = kHead > 128  ? 16
                                      : kHead > 64 ? 32
                                                   : 64;

// Serves head sizes up to kHead; the rest of each row is zeros. Tensors are of E, but factors are
// f32.
template <int kHead, class E, int kTileRows>
struct ScalarTiling {
  using Element = E;
  using Factor = float;
  static constexpr int kSide = 16;
  static constexpr int kThreads = kSide * kSide;
  static constexpr int kRows = kTileRows;
  static constexpr int kLargeRows = kLargeTileRows<kHead>;
  static constexpr int kLanesOfRow = kSide;  // neighbours that share the rows of a product
  static constexpr int kRowsOfThread = kRows / kSide;
  static constexpr int kKeysOfThread = kRows / kSide;
  static constexpr int kColumnsOfThread = kHead / kSide;
  static constexpr int kGroups = kColumnsOfThread / 4;
  static constexpr int kStride = kHead + 4;  // rows of neighbours lie in different banks
  static constexpr int kWeightStride = kRows + 4;

  struct alignas(16) Tile {
    float rows[kRows][kStride];
  };
  struct alignas(16) Weights {
    float rows[kRows][kWeightStride];
  };
  using Scores = float[kRowsOfThread][kKeysOfThread];
  using Columns = float[kRowsOfThread][kColumnsOfThread];

  __device__ static int X() { return static_cast<int>(threadIdx.x) % kSide; }
  __device__ static int Row(int a) {
    return static_cast<int>(threadIdx.x) / kSide * kRowsOfThread + a;
  }
  __device__ static int Key(int b) { return X() + kSide * b; }
  __device__ static int Column(int c) { return X() * 4 + c / 4 * 64 + c % 4; }
  __device__ static bool FirstLaneOfRow() { return X() == 0; }

  __device__ static void Fill(Tile& tile, const HeadRows<E>& rows) {
    ForGroupsOfTile<kRows, kHead, kThreads, 4>(rows, [&](int row, int i, const E* p) {
      Four x = {};
      if (p != nullptr) {
        x = rows.aligned ? Load<true>(p, i, rows.head_size) : Load<false>(p, i, rows.head_size);
      }
      Store<true>(tile.rows[row], i, kHead, x);
    });
  }

  // scores[a][b] becomes a row of `left` times a row of `right`.
  __device__ static void Multiply(const Tile& left, const Tile& right, Scores& scores) {
#pragma unroll
    for (int a = 0; a < kRowsOfThread; ++a) {
#pragma unroll
      for (int b = 0; b < kKeysOfThread; ++b) scores[a][b] = 0;
    }
#pragma unroll 2
    for (int i = 0; i < kHead; i += 4) {
      Four l[kRowsOfThread], r[kKeysOfThread];
#pragma unroll
      for (int a = 0; a < kRowsOfThread; ++a) l[a] = Load<true>(left.rows[Row(a)], i, kHead);
#pragma unroll
      for (int b = 0; b < kKeysOfThread; ++b) r[b] = Load<true>(right.rows[Key(b)], i, kHead);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
#pragma unroll
        for (int a = 0; a < kRowsOfThread; ++a) {
#pragma unroll
          for (int b = 0; b < kKeysOfThread; ++b) scores[a][b] += l[a].v[k] * r[b].v[k];
        }
      }
    }
  }

  // sums += weights * tile.
  __device__ static void Accumulate(const Weights& weights, const Tile& tile, Columns& sums) {
#pragma unroll 1
    for (int i = 0; i < kRows; i += 4) {
      Four w[kRowsOfThread];
#pragma unroll
      for (int a = 0; a < kRowsOfThread; ++a) w[a] = Load<true>(weights.rows[Row(a)], i, kRows);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        AddTimes(sums, tile, i + k, [&](int a) { return w[a].v[k]; });
      }
    }
  }

  // sums += weights^T * tile.
  __device__ static void AccumulateTransposed(const Weights& weights, const Tile& tile,
                                              Columns& sums) {
#pragma unroll 4
    for (int i = 0; i < kRows; ++i) {
      AddTimes(sums, tile, i, [&](int a) { return weights.rows[i][Row(a)]; });
    }
  }

  // sums[a] += weight(a) * a row of the tile.
  template <class F>
  __device__ static void AddTimes(Columns& sums, const Tile& tile, int row, const F& weight) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const Four value = Load<true>(tile.rows[row], X() * 4 + 64 * g, kHead);
#pragma unroll
      for (int a = 0; a < kRowsOfThread; ++a) {
#pragma unroll
        for (int k = 0; k < 4; ++k) sums[a][g * 4 + k] += weight(a) * value.v[k];
      }
    }
  }

  // Stores the sums of row a, times `factor`, to the row of one head at `to`.
  __device__ static void StoreRow(const Columns& sums, int a, float factor, E* to, int head_size,
                                  bool aligned) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int i = X() * 4 + 64 * g;
      if (i >= head_size) continue;
      const Four x = Each([&](int k) { return sums[a][g * 4 + k] * factor; });
      aligned ? Store<true>(to, i, head_size, x) : Store<false>(to, i, head_size, x);
    }
  }
};

}  // namespace takt::backend::cuda
