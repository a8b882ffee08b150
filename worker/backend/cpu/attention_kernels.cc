// SPDX-License-Identifier: Apache-2.0
// Computes causal attention of one (sequence, key/value head) on one thread, after FlashAttention-2
// (Dao 2023, algorithms 1 and 2). The outer loop goes over blocks of queries, the inner loop over
// blocks of keys, and no score outside the current block is kept. Blocks that a window, or the
// start of a document, hides wholly are left out, and so is what a few queries in a row do not see
// of other blocks. Unlike the paper, the backward has queries in the outer loop too, because one
// thread owns d_k and d_v of its head and can add to them.
//
// Everything is first packed into scratch with rows of W floats: D is rounded up to full vectors
// and the rest is filled with zeros. The padding adds nothing to any product, rows do not compete
// for cache sets, and loads never pass the end of a tensor.
#include "worker/backend/cpu/attention_tiles.h"
#include "worker/backend/cpu/isa_kernels.h"
#include "worker/backend/cpu/vec.h"

namespace takt::backend::TAKT_ISA {
namespace {

// Rows and columns of a block. Its scores and its slices of q, k and v stay in the L1 cache.
constexpr std::int64_t kQueries = 32;
constexpr std::int64_t kKeys = 64;
constexpr float kLowest = -3.402823466e+38F;

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

// The numbers [begin, end).
struct Interval {
  std::int64_t begin, end;
  std::int64_t size() const { return end - begin; }
  bool empty() const { return begin >= end; }
};

// A block of scores: queries [q_begin, q_begin + rows), keys [k_begin, k_begin + columns).
struct Block {
  const Item& item;
  std::int64_t q_begin, rows, k_begin, columns;
  std::int64_t padded() const { return RoundUp(columns, kWidth); }

  // Returns the keys of the block that query `row` sees; both are 0 if it sees none.
  Interval SeenBy(std::int64_t row) const {
    const std::int64_t end = Clip(q_begin + row + 1 - k_begin);
    const std::int64_t first = Clip(FirstSeen(item, q_begin + row) - k_begin);
    return first < end ? Interval{first, end} : Interval{0, 0};
  }
  std::int64_t Clip(std::int64_t key) const { return key < 0 ? 0 : Min(columns, key); }
};

// Says which queries of a block see which keys. Neither the first nor the last key that a query
// sees comes before that of an earlier query.
class Visible {
 public:
  explicit Visible(const Block& block) : block_(block) {
    for (std::int64_t row = 0; row < block.rows; ++row) seen_[row] = block.SeenBy(row);
    while (seeing_.begin < block.rows && seen_[seeing_.begin].empty()) ++seeing_.begin;
    seeing_.end = seeing_.begin;
    while (seeing_.end < block.rows && !seen_[seeing_.end].empty()) ++seeing_.end;
  }

  const Interval& SeenBy(std::int64_t row) const { return seen_[row]; }

  // Calls f(rows, keys) for every kTogether rows of the block. `keys` are those that at least one
  // of these rows sees. Rows that see none are left out.
  template <class F>
  void ForRows(const F& f) const {
    for (std::int64_t row = 0; row < block_.rows; row += kTogether) {
      const Interval rows{row, Min(row + kTogether, block_.rows)};
      const Interval some{Max(rows.begin, seeing_.begin), Min(rows.end, seeing_.end)};
      if (some.begin < some.end)
        f(rows, Interval{seen_[some.begin].begin, seen_[some.end - 1].end});
    }
  }

  // Calls f(keys, rows) for every kTogether keys of the block. `rows` are those that see at least
  // one of these keys. Keys that no row sees are left out.
  template <class F>
  void ForKeys(const F& f) const {
    Interval rows{seeing_.begin, seeing_.begin};
    for (std::int64_t key = 0; key < block_.columns; key += kTogether) {
      const Interval keys{key, Min(key + kTogether, block_.columns)};
      while (rows.begin < seeing_.end && seen_[rows.begin].end <= keys.begin) ++rows.begin;
      while (rows.end < seeing_.end && seen_[rows.end].begin < keys.end) ++rows.end;
      if (rows.begin < rows.end) f(keys, rows);
    }
  }

 private:
  const Block& block_;
  Interval seen_[kQueries];
  Interval seeing_{0, 0};  // the rows that see any key
};

// Computes scores[rows, kKeys] of a block: those that some of kTogether rows see, up to whole
// vectors. queries: [rows, width]. keys: a column for each key of the block.
void Scores(const Block& block, const Visible& visible, const float* queries, Right keys,
            float* scores) {
  const std::int64_t width = block.item.width;
  visible.ForRows([&](Interval rows, Interval seen) {
    const std::int64_t first = seen.begin / kWidth * kWidth;
    MultiplyRows({queries + rows.begin * width, width, 1}, {keys.data + first, keys.stride},
                 {scores + rows.begin * kKeys + first, kKeys, false}, rows.size(),
                 RoundUp(seen.end, kWidth) - first, block.item.size);
  });
}

// out[rows, width] += weights[rows, kKeys] * values[keys, width] of a block. The weights of keys
// that a row does not see are 0.
void AddValues(const Block& block, const Visible& visible, const float* weights,
               const float* values, float* out) {
  const std::int64_t width = block.item.width;
  visible.ForRows([&](Interval rows, Interval seen) {
    MultiplyRows({weights + rows.begin * kKeys + seen.begin, kKeys, 1},
                 {values + seen.begin * width, width}, {out + rows.begin * width, width, true},
                 rows.size(), width, seen.size());
  });
}

// out[keys, width] += the transpose of weights[rows, kKeys] * values[rows, width] of a block.
void AddToKeys(const Block& block, const Visible& visible, const float* weights,
               const float* values, float* out) {
  const std::int64_t width = block.item.width;
  visible.ForKeys([&](Interval keys, Interval rows) {
    MultiplyRows({weights + rows.begin * kKeys + keys.begin, 1, kKeys},
                 {values + rows.begin * width, width}, {out + keys.begin * width, width, true},
                 keys.size(), width, rows.size());
  });
}

// Calls f(block) for all blocks of keys of which some of the queries [q_begin, q_end) see a key. No
// later query sees an earlier key than the first one does. Blocks begin at whole vectors.
template <class F>
inline void ForKeyBlocks(const Item& item, std::int64_t q_begin, std::int64_t q_end, const F& f) {
  for (std::int64_t k = FirstSeen(item, q_begin) / kWidth * kWidth; k < q_end; k += kKeys)
    f(Block{item, q_begin, q_end - q_begin, k, Min(kKeys, q_end - k)});
}

// Makes the scores that are seen e^(score - shift), and the others up to `padded` zero. Returns the
// sum.
float ExpScores(float* scores, float shift, const Interval& seen, std::int64_t padded) {
  Vec sum = {};
  std::int64_t i = 0;
  for (; i + kWidth <= seen.begin; i += kWidth) Store(scores + i, Vec{});
  if (i < seen.begin) {
    const Vec e = DropFirst(Exp(Load(scores + i) - shift), seen.begin - i);
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

void SoftmaxBlock(const Block& block, const Visible& visible, float* scores, Running& running,
                  float* output, std::int64_t width) {
  for (std::int64_t r = 0; r < block.rows; ++r) {
    float* row = scores + r * kKeys;
    const Interval& seen = visible.SeenBy(r);
    Vec row_max = Splat(running.max[r]);
    std::int64_t i = seen.begin / kWidth * kWidth;
    for (std::int64_t hidden = i; hidden < seen.begin; ++hidden) row[hidden] = kLowest;
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
        const Visible visible(block);
        Scores(block, visible, q, {k_transposed + block.k_begin, item.keys}, scores);
        SoftmaxBlock(block, visible, scores, running, output, width);
        AddValues(block, visible, scores, v + block.k_begin * width, output);
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
// delta). delta is the row's d_output . output. Both become 0 where a row does not see a key.
void SoftmaxBackwardBlock(const Block& block, const Visible& visible, const float* logsumexp,
                          const float* delta, float* scores, float* d_scores) {
  for (std::int64_t r = 0; r < block.rows; ++r) {
    float* p = scores + r * kKeys;
    float* d = d_scores + r * kKeys;
    const Interval& seen = visible.SeenBy(r);
    ExpScores(p, logsumexp[r], seen, block.padded());
    std::int64_t i = 0;
    for (; i < seen.begin / kWidth * kWidth; i += kWidth) Store(d + i, Vec{});
    for (; i < seen.end; i += kWidth) Store(d + i, Load(p + i) * (Load(d + i) - delta[r]));
    for (; i < block.padded(); i += kWidth) Store(d + i, Vec{});
  }
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
        delta[r] = Dot(op.output.f32 + out_offset + r * shape.out_stride, shape.out_stride,
                       d_output + r * width, size);
      }
      ForKeyBlocks(item, begin, begin + rows, [&](const Block& block) {
        const std::int64_t first = block.k_begin * width;
        const Visible visible(block);
        Scores(block, visible, q, {k_transposed + block.k_begin, item.keys}, scores);
        Scores(block, visible, d_output, {v_transposed + block.k_begin, item.keys}, d_scores);
        SoftmaxBackwardBlock(block, visible, logsumexp + row, delta, scores, d_scores);
        AddToKeys(block, visible, scores, d_output, d_v + first);
        AddToKeys(block, visible, d_scores, q, d_k + first);
        AddValues(block, visible, d_scores, k + first, d_q);
      });
      Unpack(d_q, width, rows, size, item.scale, op.d_q.f32 + item.q_offset(shape, head, row),
             shape.q_stride);
    });
  }
  Unpack(d_k, width, context, size, 1, op.d_k.f32 + item.kv_offset, shape.kv_stride);
  Unpack(d_v, width, context, size, 1, op.d_v.f32 + item.kv_offset, shape.kv_stride);
}

}  // namespace takt::backend::TAKT_ISA
