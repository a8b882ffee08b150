// SPDX-License-Identifier: Apache-2.0
// Computes causal attention of one (sequence, key/value head) on one thread, after FlashAttention-2
// (Dao 2023, algorithms 1 and 2). The outer loop goes over blocks of queries, the inner loop over
// blocks of keys, and no score outside the current block is kept. Blocks that a window, or the
// start of a document, hides wholly are left out. Unlike the paper, the backward has queries in the
// outer loop too, because one thread owns d_k and d_v of its head and can add to them.
//
// Everything is first packed into scratch with rows of W floats: D is rounded up to full vectors
// and the rest is filled with zeros. The padding adds nothing to any product, rows do not compete
// for cache sets, and loads never pass the end of a tensor.
#include "worker/backend/cpu/isa_kernels.h"
#include "worker/backend/cpu/vec.h"

namespace takt::backend::TAKT_ISA {
namespace {

// Rows and columns of a block. Its scores and its slices of q, k and v stay in the L1 cache.
constexpr std::int64_t kQueries = 32;
constexpr std::int64_t kKeys = 64;
constexpr float kLowest = -3.402823466e+38F;

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
template <int R, int C>
inline void Tile(Left a, Right b, Out c, std::int64_t k) {
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
inline void TileRow(Left a, Right b, Out c, std::int64_t n, std::int64_t k) {
  constexpr int kColumns = kWidth == 16 ? 4 : 2;  // as many as the register file holds
  std::int64_t j = 0;
  for (; j + kColumns * kWidth <= n; j += kColumns * kWidth) {
    Tile<R, kColumns>(a, {b.data + j, b.stride}, {c.data + j, c.stride, c.accumulate}, k);
  }
  for (; j < n; j += kWidth)
    Tile<R, 1>(a, {b.data + j, b.stride}, {c.data + j, c.stride, c.accumulate}, k);
}

void Multiply(Left a, Right b, Out c, std::int64_t m, std::int64_t n, std::int64_t k) {
  std::int64_t i = 0;
  const auto rows_from = [&](std::int64_t row) {
    return Left{a.data + row * a.row, a.row, a.column};
  };
  const auto out_from = [&](std::int64_t row) {
    return Out{c.data + row * c.stride, c.stride, c.accumulate};
  };
  for (; i + 4 <= m; i += 4) TileRow<4>(rows_from(i), b, out_from(i), n, k);
  for (; i < m; ++i) TileRow<1>(rows_from(i), b, out_from(i), n, k);
}

// to[rows, padded] becomes factor * from[rows, size]; the padding becomes zeros.
void PackRows(const float* from, std::int64_t stride, std::int64_t rows, std::int64_t size,
              std::int64_t padded, float factor, float* to) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t i = 0; i < padded; i += kWidth) {
      Store(to + r * padded + i, LoadN(from + r * stride + i, size - i) * factor);
    }
  }
}

// to[size, padded_rows] becomes the transpose of from[rows, size]; the padding becomes zeros.
void PackTransposed(const float* from, std::int64_t stride, std::int64_t rows, std::int64_t size,
                    std::int64_t padded_rows, float* to) {
  for (std::int64_t begin = 0; begin < rows; begin += kWidth) {
    const std::int64_t n = Min(kWidth, rows - begin);
    for (std::int64_t d = 0; d < size; ++d) {
      const float* column = from + begin * stride + d;
      float* row = to + d * padded_rows + begin;
      if (n == kWidth) {
#pragma GCC unroll 16
        for (int i = 0; i < kWidth; ++i) row[i] = column[i * stride];
      } else {
        for (std::int64_t i = 0; i < kWidth; ++i) row[i] = i < n ? column[i * stride] : 0;
      }
    }
  }
}

// Writes from[rows, padded] * factor to the first `size` columns of `to`.
void Unpack(const float* from, std::int64_t padded, std::int64_t rows, std::int64_t size,
            float factor, float* to, std::int64_t stride) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t i = 0; i < size; i += kWidth) {
      StoreN(to + r * stride + i, Load(from + r * padded + i) * factor, size - i);
    }
  }
}

void Zero(float* p, std::int64_t count) {
  __builtin_memset(p, 0, static_cast<std::size_t>(count) * sizeof(float));
}

// The sizes and places of one item, which both directions share.
struct Item {
  Item(const AttentionShape& s, std::int64_t item, const std::int32_t* all_starts = nullptr)
      : context(s.context),
        queries(s.context / s.shares),
        size(s.head_size),
        width(RoundUp(s.head_size, kWidth)),
        keys(RoundUp(s.context, kWidth)),
        window(s.window > 0 ? s.window : s.context),
        group(s.heads / s.kv_heads),
        batch(item / s.kv_heads),
        kv_head(item % s.kv_heads),
        kv_offset(batch * context * s.kv_stride + kv_head * size),
        starts(all_starts != nullptr ? all_starts + batch * queries : nullptr),
        scale(1.0F / __builtin_sqrtf(static_cast<float>(size))) {}

  std::int64_t q_offset(const AttentionShape& s, std::int64_t head, std::int64_t row) const {
    return (batch * queries + row) * s.q_stride + head * size;
  }
  std::int64_t out_offset(const AttentionShape& s, std::int64_t head, std::int64_t row) const {
    return (batch * queries + row) * s.out_stride + head * size;
  }

  std::int64_t context;
  std::int64_t queries;  // of the sequence, in rows one behind the other
  std::int64_t size;
  std::int64_t width;   // W
  std::int64_t keys;    // T rounded up to full vectors
  std::int64_t window;  // the most keys that a query sees
  std::int64_t group;   // query heads of a key/value head
  std::int64_t batch, kv_head, kv_offset;
  const std::int32_t* starts;  // of the sequence's documents, or null
  float scale;
  // Queries of the run of rows that is computed stand so many rows before their positions.
  std::int64_t shift = 0;
};

// Calls f(begin, rows) for all blocks of queries [begin, begin + rows), and sets item.shift. No
// block has queries of two pieces of the sequence.
template <class F>
inline void ForQueryBlocks(const AttentionShape& s, Item& item, const F& f) {
  const std::int64_t pieces = s.shares == 1 ? 1 : 2, length = item.queries / pieces;
  for (std::int64_t i = 0; i < pieces; ++i) {
    const std::int64_t first = (i == 0 ? s.share : 2 * s.shares - 1 - s.share) * length;
    item.shift = first - i * length;
    for (std::int64_t begin = first; begin < first + length; begin += kQueries)
      f(begin, Min(kQueries, first + length - begin));
  }
}

// Returns the first key that a query sees.
inline std::int64_t FirstSeen(const Item& item, std::int64_t query) {
  const std::int64_t first = query + 1 - item.window;
  if (item.starts == nullptr) return first > 0 ? first : 0;
  const std::int64_t start = item.starts[query - item.shift] + item.shift;
  return start > first ? start : (first > 0 ? first : 0);
}

// A block of scores: queries [q_begin, q_begin + rows), keys [k_begin, k_begin + columns).
struct Block {
  const Item& item;
  std::int64_t q_begin, rows, k_begin, columns;
  std::int64_t padded() const { return RoundUp(columns, kWidth); }

  // Query `row` sees the keys [first, end) of the block. `end` is 0 if it sees none.
  struct Seen {
    std::int64_t first, end;
  };
  Seen SeenBy(std::int64_t row) const {
    const std::int64_t end = Clip(q_begin + row + 1 - k_begin);
    const std::int64_t first = Clip(FirstSeen(item, q_begin + row) - k_begin);
    return first < end ? Seen{first, end} : Seen{0, 0};
  }
  std::int64_t Clip(std::int64_t key) const { return key < 0 ? 0 : Min(columns, key); }
};

// Calls f(block) for all blocks of keys of which some of the queries [q_begin, q_end) see a key. No
// later query sees an earlier key than the first one does. Blocks begin at whole vectors.
template <class F>
inline void ForKeyBlocks(const Item& item, std::int64_t q_begin, std::int64_t q_end, const F& f) {
  for (std::int64_t k = FirstSeen(item, q_begin) / kWidth * kWidth; k < q_end; k += kKeys)
    f(Block{item, q_begin, q_end - q_begin, k, Min(kKeys, q_end - k)});
}

// Makes the scores that are seen e^(score - shift), and the others up to `padded` zero. Returns the
// sum.
float ExpScores(float* scores, float shift, const Block::Seen& seen, std::int64_t padded) {
  Vec sum = {};
  std::int64_t i = 0;
  for (; i + kWidth <= seen.first; i += kWidth) Store(scores + i, Vec{});
  if (i < seen.first) {
    const Vec e = DropFirst(Exp(Load(scores + i) - shift), seen.first - i);
    const Vec kept = KeepFirst(e, seen.end - i);
    Store(scores + i, kept);
    sum += kept;
    i += kWidth;
  }
  for (; i + kWidth <= seen.end; i += kWidth) {
    const Vec e = Exp(Load(scores + i) - shift);
    Store(scores + i, e);
    sum += e;
  }
  if (i < seen.end) {
    const Vec e = KeepFirst(Exp(Load(scores + i) - shift), seen.end - i);
    Store(scores + i, e);
    sum += e;
    i += kWidth;
  }
  for (; i < padded; i += kWidth) Store(scores + i, Vec{});
  return Sum(sum);
}

void ScaleRow(float* row, std::int64_t width, float factor) {
  for (std::int64_t i = 0; i < width; i += kWidth) Store(row + i, Load(row + i) * factor);
}

// The running softmax of algorithm 1: the maximum and the sum so far, and the output times that
// sum.
struct Running {
  float max[kQueries], sum[kQueries];
};

void SoftmaxBlock(const Block& block, float* scores, Running& running, float* output,
                  std::int64_t width) {
  for (std::int64_t r = 0; r < block.rows; ++r) {
    float* row = scores + r * kKeys;
    const Block::Seen seen = block.SeenBy(r);
    Vec row_max = Splat(running.max[r]);
    std::int64_t i = seen.first / kWidth * kWidth;
    for (std::int64_t hidden = i; hidden < seen.first; ++hidden) row[hidden] = kLowest;
    for (; i + kWidth <= seen.end; i += kWidth) row_max = Max(Load(row + i), row_max);
    if (i < seen.end) row_max = Max(LoadPart(row + i, seen.end - i, kLowest), row_max);
    const float max = MaxElement(row_max);
    if (max > running.max[r] && running.sum[r] > 0) {
      const float shrink = Exp(Splat(running.max[r] - max))[0];
      running.sum[r] *= shrink;
      ScaleRow(output + r * width, width, shrink);
    }
    running.max[r] = max;
    running.sum[r] += ExpScores(row, max, seen, block.padded());
  }
}

}  // namespace

std::int64_t AttentionForwardScratch(const AttentionShape& shape) {
  const Item item(shape, 0);
  return item.size * item.keys + item.context * item.width + 2 * kQueries * item.width +
         kQueries * kKeys;
}

void AttentionForwardItem(const AttentionForward& op, std::int64_t item_index, float* scratch) {
  const AttentionShape& shape = op.shape;
  Item item(shape, item_index, op.starts);
  const std::int64_t width = item.width;
  float* k_transposed = scratch;                    // [D, keys]
  float* v = k_transposed + item.size * item.keys;  // [T, W]
  float* q = v + item.context * width;              // [kQueries, W], times scale
  float* output = q + kQueries * width;             // [kQueries, W]
  float* scores = output + kQueries * width;        // [kQueries, kKeys]
  PackTransposed(op.k.f32 + item.kv_offset, shape.kv_stride, item.context, item.size, item.keys,
                 k_transposed);
  PackRows(op.v.f32 + item.kv_offset, shape.kv_stride, item.context, item.size, width, 1, v);

  for (std::int64_t head = item.kv_head * item.group; head < (item.kv_head + 1) * item.group;
       ++head) {
    float* logsumexp = op.logsumexp + (item.batch * shape.heads + head) * item.queries;
    ForQueryBlocks(shape, item, [&](std::int64_t begin, std::int64_t rows) {
      const std::int64_t row = begin - item.shift;
      PackRows(op.q.f32 + item.q_offset(shape, head, row), shape.q_stride, rows, item.size, width,
               item.scale, q);
      Zero(output, rows * width);
      Running running;
      for (std::int64_t r = 0; r < rows; ++r) {
        running.max[r] = kLowest;
        running.sum[r] = 0;
      }
      ForKeyBlocks(item, begin, begin + rows, [&](const Block& block) {
        Multiply({q, width, 1}, {k_transposed + block.k_begin, item.keys}, {scores, kKeys, false},
                 rows, block.padded(), item.size);
        SoftmaxBlock(block, scores, running, output, width);
        Multiply({scores, kKeys, 1}, {v + block.k_begin * width, width}, {output, width, true},
                 rows, width, block.columns);
      });
      for (std::int64_t r = 0; r < rows; ++r) {
        ScaleRow(output + r * width, width, 1.0F / running.sum[r]);
        logsumexp[row + r] = static_cast<float>(static_cast<double>(running.max[r]) +
                                                __builtin_log(static_cast<double>(running.sum[r])));
      }
      Unpack(output, width, rows, item.size, 1, op.output.f32 + item.out_offset(shape, head, row),
             shape.out_stride);
    });
  }
}

std::int64_t AttentionBackwardScratch(const AttentionShape& shape) {
  const Item item(shape, 0);
  return 2 * item.size * item.keys + 3 * item.context * item.width + 3 * kQueries * item.width +
         2 * kQueries * kKeys;
}

namespace {

// Turns scores into probabilities P, and d_scores (which hold d_output v^T) into P (d_scores -
// delta). delta is the row's d_output . output.
void SoftmaxBackwardBlock(const Block& block, const float* logsumexp, const float* delta,
                          float* scores, float* d_scores) {
  for (std::int64_t r = 0; r < block.rows; ++r) {
    float* p = scores + r * kKeys;
    float* d = d_scores + r * kKeys;
    ExpScores(p, logsumexp[r], block.SeenBy(r), block.padded());
    for (std::int64_t i = 0; i < block.padded(); i += kWidth)
      Store(d + i, Load(p + i) * (Load(d + i) - delta[r]));
  }
}

float Dot(const float* a, const float* b, std::int64_t n) {
  Vec sum = {};
  std::int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) sum += Load(a + i) * Load(b + i);
  if (i < n) sum += LoadPart(a + i, n - i) * LoadPart(b + i, n - i);
  return Sum(sum);
}

}  // namespace

void AttentionBackwardItem(const AttentionBackward& op, std::int64_t item_index, float* scratch) {
  const AttentionShape& shape = op.shape;
  Item item(shape, item_index, op.starts);
  const std::int64_t width = item.width, context = item.context, size = item.size;
  float* k_transposed = scratch;                          // [D, keys]
  float* v_transposed = k_transposed + size * item.keys;  // [D, keys]
  float* k = v_transposed + size * item.keys;             // [T, W]
  float* d_k = k + context * width;                       // [T, W]
  float* d_v = d_k + context * width;                     // [T, W]
  float* q = d_v + context * width;                       // [kQueries, W], times scale
  float* d_output = q + kQueries * width;                 // [kQueries, W]
  float* d_q = d_output + kQueries * width;               // [kQueries, W]
  float* scores = d_q + kQueries * width;                 // [kQueries, kKeys]
  float* d_scores = scores + kQueries * kKeys;            // [kQueries, kKeys]
  PackTransposed(op.k.f32 + item.kv_offset, shape.kv_stride, context, size, item.keys,
                 k_transposed);
  PackTransposed(op.v.f32 + item.kv_offset, shape.kv_stride, context, size, item.keys,
                 v_transposed);
  PackRows(op.k.f32 + item.kv_offset, shape.kv_stride, context, size, width, 1, k);
  Zero(d_k, 2 * context * width);

  for (std::int64_t head = item.kv_head * item.group; head < (item.kv_head + 1) * item.group;
       ++head) {
    const float* logsumexp = op.logsumexp + (item.batch * shape.heads + head) * item.queries;
    ForQueryBlocks(shape, item, [&](std::int64_t begin, std::int64_t rows) {
      const std::int64_t row = begin - item.shift;
      const std::int64_t out_offset = item.out_offset(shape, head, row);
      PackRows(op.q.f32 + item.q_offset(shape, head, row), shape.q_stride, rows, size, width,
               item.scale, q);
      PackRows(op.d_output.f32 + out_offset, shape.out_stride, rows, size, width, 1, d_output);
      Zero(d_q, rows * width);
      float delta[kQueries];
      for (std::int64_t r = 0; r < rows; ++r) {
        delta[r] =
            Dot(op.output.f32 + out_offset + r * shape.out_stride, d_output + r * width, size);
      }
      ForKeyBlocks(item, begin, begin + rows, [&](const Block& block) {
        const std::int64_t first = block.k_begin * width;
        Multiply({q, width, 1}, {k_transposed + block.k_begin, item.keys}, {scores, kKeys, false},
                 rows, block.padded(), size);
        Multiply({d_output, width, 1}, {v_transposed + block.k_begin, item.keys},
                 {d_scores, kKeys, false}, rows, block.padded(), size);
        SoftmaxBackwardBlock(block, logsumexp + row, delta, scores, d_scores);
        Multiply({scores, 1, kKeys}, {d_output, width}, {d_v + first, width, true}, block.columns,
                 width, rows);
        Multiply({d_scores, 1, kKeys}, {q, width}, {d_k + first, width, true}, block.columns, width,
                 rows);
        Multiply({d_scores, kKeys, 1}, {k + first, width}, {d_q, width, true}, rows, width,
                 block.columns);
      });
      Unpack(d_q, width, rows, size, item.scale, op.d_q.f32 + item.q_offset(shape, head, row),
             shape.q_stride);
    });
  }
  Unpack(d_k, width, context, size, 1, op.d_k.f32 + item.kv_offset, shape.kv_stride);
  Unpack(d_v, width, context, size, 1, op.d_v.f32 + item.kv_offset, shape.kv_stride);
}

}  // namespace takt::backend::TAKT_ISA
