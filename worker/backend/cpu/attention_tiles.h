// SPDX-License-Identifier: Apache-2.0
// What attention_kernels.cc is made of: products of a few rows in registers, and copies between
// tensors and rows of W floats in scratch. Functions are static, as in vec.h.
#pragma once

#include <utility>

#include "worker/backend/cpu/vec.h"

namespace takt::backend::TAKT_ISA {

// Rows of a product that are computed together, over the terms that some of them need.
inline constexpr std::int64_t kTogether = 4;
// Rows of a tensor are fetched into the cache so many rows before they are needed. The rows of one
// head lie far apart, so hardware does not prefetch them. A prefetch behind the last row has no
// effect.
inline constexpr std::int64_t kAhead = 12;

// c[m,n] (+)= a * b. Element (i, j) of a is a[i * row + j * column]; n is a multiple of kWidth.
struct Left {
  const float* data;
  std::int64_t row, column;
};
struct Right {
  const float* data;
  std::int64_t stride;
};
struct Out {
  float* data;
  std::int64_t stride;
  bool accumulate;
};

// Computes R rows times C vectors of the product in registers, so every loop over them is unrolled.
// It is not inlined, because GCC then spills the sums.
template <int R, int C>
[[gnu::noinline]] static void Tile(Left a, Right b, Out c, std::int64_t k) {
  Vec sums[R][C];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) {
      sums[i][j] = c.accumulate ? Load(c.data + i * c.stride + j * kWidth) : Vec{};
    }
  }
  for (std::int64_t p = 0; p < k; ++p) {
    Vec right[C];
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) right[j] = Load(b.data + p * b.stride + j * kWidth);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const Vec left = Splat(a.data[i * a.row + p * a.column]);
#pragma GCC unroll 8
      for (int j = 0; j < C; ++j) sums[i][j] += left * right[j];
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) Store(c.data + i * c.stride + j * kWidth, sums[i][j]);
  }
}

template <int R>
static inline void TileRow(Left a, Right b, Out c, std::int64_t n, std::int64_t k) {
  constexpr int kColumns = kWidth == 16 ? 4 : 2;  // as many as the register file holds
  std::int64_t j = 0;
  for (; j + kColumns * kWidth <= n; j += kColumns * kWidth) {
    Tile<R, kColumns>(a, {b.data + j, b.stride}, {c.data + j, c.stride, c.accumulate}, k);
  }
  for (; j < n; j += kWidth)
    Tile<R, 1>(a, {b.data + j, b.stride}, {c.data + j, c.stride, c.accumulate}, k);
}

// Computes the rows [0, m) of c, at most kTogether.
static void MultiplyRows(Left a, Right b, Out c, std::int64_t m, std::int64_t n, std::int64_t k) {
  if (m == kTogether) return TileRow<kTogether>(a, b, c, n, k);
  for (std::int64_t i = 0; i < m; ++i) {
    TileRow<1>({a.data + i * a.row, a.row, a.column}, b,
               {c.data + i * c.stride, c.stride, c.accumulate}, n, k);
  }
}

// to[rows, padded] becomes factor * from[rows, size]; the padding becomes zeros.
static void PackRows(const float* from, std::int64_t stride, std::int64_t rows, std::int64_t size,
                     std::int64_t padded, float factor, float* to) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t i = 0; i < padded; i += kWidth) {
      __builtin_prefetch(from + (r + kAhead) * stride + i);
      Store(to + r * padded + i, LoadN(from + r * stride + i, size - i) * factor);
    }
  }
}

// Returns what lane `lane` of a row becomes when a bit is swapped: the index of a lane of two rows
// behind one another, which differ in bit kBit of their index. kSet: of the second row.
template <int kBit, bool kSet>
constexpr int LaneAfterSwap(int lane) {
  const bool set = (lane & kBit) != 0;
  if (kSet) return set ? kWidth + lane : lane + kBit;
  return set ? kWidth + lane - kBit : lane;
}

// Swaps bit kBit of the row index with that of the lane index. Doing so for all bits transposes the
// tile.
template <int kBit, int... kLanes>
inline void SwapBits(Vec (&rows)[kWidth], std::integer_sequence<int, kLanes...> lanes) {
#pragma GCC unroll 16
  for (int i = 0; i < kWidth; ++i) {
    if ((i & kBit) != 0) continue;
    const Vec first = rows[i], second = rows[i + kBit];
    rows[i] = __builtin_shufflevector(first, second, LaneAfterSwap<kBit, false>(kLanes)...);
    rows[i + kBit] = __builtin_shufflevector(first, second, LaneAfterSwap<kBit, true>(kLanes)...);
  }
  if constexpr (2 * kBit < kWidth) SwapBits<2 * kBit>(rows, lanes);
}

// to[size, padded_rows] becomes the transpose of from[rows, size]; the padding becomes zeros.
static void PackTransposed(const float* from, std::int64_t stride, std::int64_t rows,
                           std::int64_t size, std::int64_t padded_rows, float* to) {
  for (std::int64_t row = 0; row < rows; row += kWidth) {
    const std::int64_t n = Min(kWidth, rows - row);
    for (std::int64_t d = 0; d < size; d += kWidth) {
      const std::int64_t m = Min(kWidth, size - d);
      Vec tile[kWidth];
      if (n == kWidth && m == kWidth) {
#pragma GCC unroll 16
        for (int i = 0; i < kWidth; ++i) {
          __builtin_prefetch(from + (row + kWidth + i) * stride + d);  // of the next tile
          tile[i] = Load(from + (row + i) * stride + d);
        }
      } else {
        for (int i = 0; i < kWidth; ++i)
          tile[i] = i < n ? LoadN(from + (row + i) * stride + d, m) : Vec{};
      }
      SwapBits<1>(tile, std::make_integer_sequence<int, kWidth>());
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i)
        if (i < m) Store(to + (d + i) * padded_rows + row, tile[i]);
    }
  }
}

// Returns the product of two rows, the first of which is one of many that lie `stride` apart.
static float Dot(const float* a, std::int64_t stride, const float* b, std::int64_t n) {
  Vec sum = {};
  for (std::int64_t i = 0; i < n; i += kWidth) {
    __builtin_prefetch(a + kAhead * stride + i);
    sum += LoadN(a + i, n - i) * LoadN(b + i, n - i);
  }
  return Sum(sum);
}

// Writes from[rows, padded] * factor to the first `size` columns of `to`.
static void Unpack(const float* from, std::int64_t padded, std::int64_t rows, std::int64_t size,
                   float factor, float* to, std::int64_t stride) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t i = 0; i < size; i += kWidth) {
      __builtin_prefetch(to + (r + kAhead) * stride + i, /*for writing*/ 1);
      StoreN(to + r * stride + i, Load(from + r * padded + i) * factor, size - i);
    }
  }
}

static void Zero(float* p, std::int64_t count) {
  __builtin_memset(p, 0, static_cast<std::size_t>(count) * sizeof(float));
}

}  // namespace takt::backend::TAKT_ISA
