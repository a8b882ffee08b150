// SPDX-License-Identifier: Apache-2.0
// Kernels for a few tokens at a time, as text is generated. They read each weight, key and value
// once, in the order of memory, because that is what takes their time.
#include "worker/backend/cpu/isa_kernels.h"
#include "worker/backend/cpu/vec.h"

namespace takt::backend::TAKT_ISA {
namespace {

constexpr float kLowest = -3.402823466e+38F;

// Writes the products of x with `count` rows, which are `size` floats long and follow each other,
// times `factor`: out[j] = factor * (x . rows[j]).
void Dots(const float* x, const float* rows, std::int64_t size, std::int64_t count, float factor,
          float* out) {
  std::int64_t j = 0;
  for (; j + 4 <= count; j += 4) {
    const float* row = rows + j * size;
    Vec sums[4] = {};
    for (std::int64_t i = 0; i < size; i += kWidth) {
      const std::int64_t n = size - i;
      const Vec left = LoadN(x + i, n);
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) sums[r] += left * LoadN(row + r * size + i, n);
    }
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) out[j + r] = Sum(sums[r]) * factor;
  }
  for (; j < count; ++j) {
    Vec sum = {};
    for (std::int64_t i = 0; i < size; i += kWidth) {
      const std::int64_t n = size - i;
      sum += LoadN(x + i, n) * LoadN(rows + j * size + i, n);
    }
    out[j] = Sum(sum) * factor;
  }
}

// Adds rows [first, first + R) of b, each times its element of `a`, to the columns of c.
template <int R>
inline void AddRows(const Matmul& op, std::int64_t first, Range columns) {
  Vec factors[R];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) factors[r] = Splat(op.a[first + r]);
  const float* b = op.b + first * op.n;
  for (std::int64_t j = columns.begin; j < columns.end; j += kWidth) {
    const std::int64_t n = columns.end - j;
    Vec sum = LoadN(op.c + j, n);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) sum += factors[r] * LoadN(b + r * op.n + j, n);
    StoreN(op.c + j, sum, n);
  }
}

// Makes c bias + addend, with zero for what there is not.
void BeginColumns(const Matmul& op, Range columns) {
  for (std::int64_t j = columns.begin; j < columns.end; j += kWidth) {
    const std::int64_t n = columns.end - j;
    Vec sum = {};
    if (op.bias != nullptr) sum += LoadN(op.bias + j, n);
    if (op.addend != nullptr) sum += LoadN(op.addend + j, n);
    StoreN(op.c + j, sum, n);
  }
}

// Makes scores[0..count) e^(score - the largest) and returns their sum.
float ExpScores(float* scores, std::int64_t count) {
  Vec largest = Splat(kLowest);
  for (std::int64_t i = 0; i < count; i += kWidth) {
    const std::int64_t n = count - i;
    largest = Max(n >= kWidth ? Load(scores + i) : LoadPart(scores + i, n, kLowest), largest);
  }
  const float max = MaxElement(largest);
  Vec sum = {};
  for (std::int64_t i = 0; i < count; i += kWidth) {
    const std::int64_t n = count - i;
    const Vec e = KeepFirst(Exp(LoadN(scores + i, n) - max), n);
    StoreN(scores + i, e, n);
    sum += e;
  }
  return Sum(sum);
}

// Writes C vectors of the sum of values[t] * weights[t] over t, times `factor`. Rows of values are
// `size` apart. last: the elements of the last vector, or more.
template <int C>
inline void WeightedSum(const float* weights, const float* values, std::int64_t size,
                        std::int64_t count, float factor, std::int64_t last, float* out) {
  Vec sums[C] = {};
  for (std::int64_t t = 0; t < count; ++t) {
    const Vec weight = Splat(weights[t]);
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      sums[c] += weight * LoadN(values + t * size + c * kWidth, c + 1 < C ? kWidth : last);
    }
  }
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) StoreN(out + c * kWidth, sums[c] * factor, c + 1 < C ? kWidth : last);
}

}  // namespace

void RowProductColumns(const Matmul& op, Range columns) {
  if (!op.b_transposed) {
    constexpr int kRows = 4;
    BeginColumns(op, columns);
    std::int64_t p = 0;
    for (; p + kRows <= op.k; p += kRows) AddRows<kRows>(op, p, columns);
    for (; p < op.k; ++p) AddRows<1>(op, p, columns);
    return;
  }
  // The products go to memory of their own first, because `addend` may be c.
  constexpr std::int64_t kColumns = 64;
  float products[kColumns];
  for (std::int64_t j = columns.begin; j < columns.end; j += kColumns) {
    const std::int64_t count = Min(kColumns, columns.end - j);
    Dots(op.a, op.b + j * op.k, op.k, count, 1, products);
    BeginColumns(op, {j, j + count});
    for (std::int64_t i = 0; i < count; ++i) op.c[j + i] += products[i];
  }
}

void CachedAttentionItem(const CachedAttention& op, std::int64_t item, float* scratch) {
  const std::int64_t size = op.head_size, group = op.heads / op.kv_heads;
  float* keys = op.keys + item * op.capacity * size;
  float* values = op.values + item * op.capacity * size;
  for (std::int64_t r = 0; r < op.rows; ++r) {
    const std::int64_t from = r * op.kv_stride + item * size, to = (op.past + r) * size;
    const std::size_t bytes = static_cast<std::size_t>(size) * sizeof(float);
    __builtin_memcpy(keys + to, op.k + from, bytes);
    __builtin_memcpy(values + to, op.v + from, bytes);
  }
  const float scale = 1.0F / __builtin_sqrtf(static_cast<float>(size));
  for (std::int64_t r = 0; r < op.rows; ++r) {
    const std::int64_t end = op.past + r + 1;
    const std::int64_t first = op.window > 0 && op.window < end ? end - op.window : 0;
    for (std::int64_t head = item * group; head < (item + 1) * group; ++head) {
      Dots(op.q + r * op.q_stride + head * size, keys + first * size, size, end - first, scale,
           scratch);
      const float factor = 1.0F / ExpScores(scratch, end - first);
      const float* seen = values + first * size;
      float* out = op.output + r * op.out_stride + head * size;
      std::int64_t i = 0;
      for (; i + 4 * kWidth <= size; i += 4 * kWidth)
        WeightedSum<4>(scratch, seen + i, size, end - first, factor, kWidth, out + i);
      for (; i < size; i += kWidth)
        WeightedSum<1>(scratch, seen + i, size, end - first, factor, size - i, out + i);
    }
  }
}

}  // namespace takt::backend::TAKT_ISA
