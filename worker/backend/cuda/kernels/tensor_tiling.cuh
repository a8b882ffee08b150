// SPDX-License-Identifier: Apache-2.0
// Multiplies tiles on tensor cores. It has the same members as ScalarTiling, for tensors and
// factors in bf16. Each of four warps has 16 rows of a product; its lane l has rows l / 4 and l / 4
// + 8 of them, and two neighbours of every eight columns.
#pragma once

#include "worker/backend/cuda/kernels/attention_tile.cuh"
#include "worker/backend/cuda/kernels/tensor_core.cuh"

namespace takt::backend::cuda {

template <int kHead>
struct TensorTiling {
  using Element = Bf16;
  using Factor = Bf16;
  static constexpr int kRows = 64;
  static constexpr int kLargeRows = 64;
  static constexpr int kThreads = kRows / 16 * kWarpSize;
  static constexpr int kLanesOfRow = 4;
  static constexpr int kRowsOfThread = 2;
  static constexpr int kKeysOfThread = kRows / 4;
  static constexpr int kColumnsOfThread = kHead / 4;
  static constexpr int kStride = kHead + 8;  // rows of neighbours lie in different banks
  static constexpr int kWeightStride = kRows + 8;

  struct alignas(16) Tile {
    Bf16 rows[kRows][kStride];
  };
  struct alignas(16) Weights {
    Bf16 rows[kRows][kWeightStride];
  };
  using Scores = float[kRowsOfThread][kKeysOfThread];
  using Columns = float[kRowsOfThread][kColumnsOfThread];

  __device__ static int Lane() { return static_cast<int>(threadIdx.x) % kWarpSize; }
  __device__ static int FirstRow() { return static_cast<int>(threadIdx.x) / kWarpSize * 16; }
  __device__ static int Row(int a) { return FirstRow() + Lane() / 4 + 8 * a; }
  __device__ static int Column(int c) { return c / 2 * 8 + Lane() % 4 * 2 + c % 2; }
  __device__ static int Key(int b) { return Column(b); }
  __device__ static bool FirstLaneOfRow() { return Lane() % 4 == 0; }

  __device__ static void Fill(Tile& tile, const HeadRows<Bf16>& rows) {
    constexpr int kCount = kIn16Bytes<Bf16>;
    using Group = Words<4>;
    ForGroupsOfTile<kRows, kHead, kThreads, kCount>(rows, [&](int row, int i, const Bf16* p) {
      auto& group = *reinterpret_cast<Group*>(&tile.rows[row][i]);
      if (p == nullptr) {
        group = {};
      } else if (rows.aligned) {
        group = *reinterpret_cast<const Group*>(p + i);
      } else {
#pragma unroll
        for (int k = 0; k < kCount; ++k) {
          tile.rows[row][i + k] = i + k < rows.head_size ? p[i + k] : Bf16{0};
        }
      }
    });
  }

  // Returns lane l's row of the 16 x 16 elements at (i, j) of a matrix. `across`: its matrices of 8
  // x 8 are numbered along rows first.
  template <class Matrix>
  __device__ static const Bf16* RowOf(const Matrix& matrix, int i, int j, bool across) {
    const int m = Lane() / 8, first = m % 2 * 8, second = m / 2 * 8;
    return &matrix.rows[i + (across ? second : first) + Lane() % 8][j + (across ? first : second)];
  }

  __device__ static void Multiply(const Tile& left, const Tile& right, Scores& scores) {
#pragma unroll
    for (int b = 0; b < kKeysOfThread; ++b) scores[0][b] = scores[1][b] = 0;
#pragma unroll 2
    for (int k = 0; k < kHead; k += 16) {
      const Fragments l = LoadMatrices<false>(RowOf(left, FirstRow(), k, false));
#pragma unroll
      for (int n = 0; n < kRows; n += 16) {
        const Fragments r = LoadMatrices<false>(RowOf(right, n, k, true));
        MultiplyAdd(&scores[0][n / 4], &scores[1][n / 4], l, r);
      }
    }
  }

  __device__ static void Accumulate(const Weights& weights, const Tile& tile, Columns& sums) {
#pragma unroll 2
    for (int k = 0; k < kRows; k += 16) {
      AddTimes(sums, LoadMatrices<false>(RowOf(weights, FirstRow(), k, false)), tile, k);
    }
  }

  __device__ static void AccumulateTransposed(const Weights& weights, const Tile& tile,
                                              Columns& sums) {
#pragma unroll 2
    for (int k = 0; k < kRows; k += 16) {
      AddTimes(sums, LoadMatrices<true>(RowOf(weights, k, FirstRow(), true)), tile, k);
    }
  }

  // sums += left * rows [k, k + 16) of the tile.
  __device__ static void AddTimes(Columns& sums, const Fragments& left, const Tile& tile, int k) {
#pragma unroll
    for (int n = 0; n < kHead; n += 16) {
      const Fragments r = LoadMatrices<true>(RowOf(tile, k, n, false));
      MultiplyAdd(&sums[0][n / 4], &sums[1][n / 4], left, r);
    }
  }

  // Stores the sums of row a, times `factor`, to the row of one head at `to`, in pairs of
  // neighbours.
  __device__ static void StoreRow(const Columns& sums, int a, float factor, Bf16* to, int head_size,
                                  bool aligned) {
#pragma unroll
    for (int c = 0; c < kColumnsOfThread; c += 2) {
      const int column = Column(c);
      const float x = sums[a][c] * factor, y = sums[a][c + 1] * factor;
      if (aligned && column < head_size) {
        reinterpret_cast<Words<1>*>(to + column)->w[0] = RoundedPair(x, y);
      } else {
        if (column < head_size) to[column] = Rounded(x);
        if (column + 1 < head_size) to[column + 1] = Rounded(y);
      }
    }
  }
};

}  // namespace takt::backend::cuda
