// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "worker/backend/cpu/op_testing.h"

namespace takt::backend::testing {
namespace {

// q, k and v of a token are side by side.
struct Case {
  std::int64_t context, heads, kv_heads, head_size, window = 0;
  std::int64_t q_columns() const { return heads * head_size; }
  std::int64_t kv_columns() const { return kv_heads * head_size; }
  std::int64_t columns() const { return q_columns() + 2 * kv_columns(); }
};

// The head sizes are around vectors of 4, 8 and 16, and four of them.
constexpr Case kCases[] = {{1, 1, 1, 4},      {5, 3, 1, 5},         {33, 2, 2, 12},
                           {70, 4, 2, 64},    {40, 1, 1, 80},       {9, 2, 1, 130},
                           {40, 4, 2, 12, 7}, {33, 2, 2, 64, 1000}, {20, 1, 1, 8, 1}};

class CachedAttentionTest : public OpTest {
 protected:
  Floats Whole(const Case& c, const Floats& qkv) {
    Floats output = Unset(c.context * c.q_columns()), logsumexp = Unset(c.context * c.heads);
    Run(AttentionForward{.shape = {.batch = 1,
                                   .context = c.context,
                                   .heads = c.heads,
                                   .kv_heads = c.kv_heads,
                                   .head_size = c.head_size,
                                   .q_stride = c.columns(),
                                   .kv_stride = c.columns(),
                                   .out_stride = c.q_columns(),
                                   .window = c.window},
                         .q = qkv.data(),
                         .k = qkv.data() + c.q_columns(),
                         .v = qkv.data() + c.q_columns() + c.kv_columns(),
                         .output = output.data(),
                         .logsumexp = logsumexp.data()});
    return output;
  }

  // Runs the tokens in pieces of at most so many, each on what the ones before left in the cache.
  Floats InPieces(const Case& c, const Floats& qkv, std::int64_t piece) {
    Floats output = Unset(c.context * c.q_columns());
    const std::int64_t capacity = c.context + kSpare;
    keys_ = Unset(capacity * c.kv_columns());
    values_ = Unset(capacity * c.kv_columns());
    for (std::int64_t past = 0; past < c.context; past += piece) {
      const float* const q = qkv.data() + past * c.columns();
      Run(CachedAttention{.q = q,
                          .k = q + c.q_columns(),
                          .v = q + c.q_columns() + c.kv_columns(),
                          .keys = keys_.data(),
                          .values = values_.data(),
                          .output = output.data() + past * c.q_columns(),
                          .rows = std::min(piece, c.context - past),
                          .past = past,
                          .capacity = capacity,
                          .heads = c.heads,
                          .kv_heads = c.kv_heads,
                          .head_size = c.head_size,
                          .q_stride = c.columns(),
                          .kv_stride = c.columns(),
                          .out_stride = c.q_columns(),
                          .window = c.window});
    }
    return output;
  }

  static constexpr std::int64_t kSpare = 3;
  Floats keys_, values_;
};

TEST_P(CachedAttentionTest, AgreesWithAttentionToTheWholeSequence) {
  for (const Case& c : kCases) {
    const Floats qkv = Random(c.context * c.columns(), 1);
    const Doubles whole = ToDoubles(Whole(c, qkv));
    for (const std::int64_t piece : {c.context, std::int64_t{7}, std::int64_t{1}}) {
      ExpectNear(InPieces(c, qkv, piece), whole, 2 * SumTolerance(c.head_size, 16), "output");
    }
  }
}

// A token's result depends on the tokens up to it, and not on how many of them came at once.
TEST_P(CachedAttentionTest, GivesTheSameBitsWhateverThePieces) {
  for (const Case& c : kCases) {
    const Floats qkv = Random(c.context * c.columns(), 2);
    const Floats whole = InPieces(c, qkv, c.context);
    EXPECT_EQ(InPieces(c, qkv, 1), whole);
    EXPECT_EQ(InPieces(c, qkv, 4), whole);
  }
}

TEST_P(CachedAttentionTest, WritesOnlyTheRowsOfNewTokens) {
  const Case c{6, 2, 2, 8};
  InPieces(c, Random(c.context * c.columns(), 3), 2);
  for (const Floats* const cache : {&keys_, &values_}) {
    for (std::size_t i = 0; i < cache->size(); ++i) {
      const auto token = static_cast<std::int64_t>(i) / c.head_size % (c.context + kSpare);
      EXPECT_EQ(std::isnan((*cache)[i]), token >= c.context) << i;
    }
  }
}

TEST_P(CachedAttentionTest, SurvivesScoresThatOverflowWithoutTheMaximum) {
  const Case c{70, 1, 1, 8};
  const Floats qkv = Random(c.context * c.columns(), 4, 30);
  ExpectNear(InPieces(c, qkv, 3), ToDoubles(Whole(c, qkv)), 60 * SumTolerance(c.head_size, 3000),
             "output");
}

TEST_P(CachedAttentionTest, RefusesMoreTokensThanTheCacheHolds) {
  float x = 0;
  CachedAttention op{.q = &x, .k = &x, .v = &x, .keys = &x, .values = &x, .output = &x};
  op.heads = op.kv_heads = op.head_size = op.q_stride = op.kv_stride = op.out_stride = 1;
  op.rows = 2;
  op.past = 3;
  op.capacity = 4;
  EXPECT_EQ(backend_->Run(op).message(), "CachedAttention.capacity is 4, must be at least 5");
  op.capacity = 5;
  op.heads = op.q_stride = op.out_stride = 3;
  op.kv_heads = op.kv_stride = 2;
  EXPECT_EQ(backend_->Run(op).message(), "CachedAttention: heads must be divisible by kv_heads");
}

INSTANTIATE_TEST_SUITE_P(Backends, CachedAttentionTest, ::testing::ValuesIn(TestedBackends()));

}  // namespace
}  // namespace takt::backend::testing
