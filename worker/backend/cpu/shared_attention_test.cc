// SPDX-License-Identifier: Apache-2.0
// Tests attention whose queries are those of one share of each sequence (AttentionShape::shares).
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "worker/backend/cpu/op_testing.h"

namespace takt::backend::testing {
namespace {

struct Case {
  std::int64_t batch, context, heads, kv_heads, head_size, shares, window = 0;
  std::int64_t document = 0;  // of DocumentStarts

  std::int64_t q_columns() const { return heads * head_size; }
  std::int64_t kv_columns() const { return kv_heads * head_size; }
  std::int64_t keys() const { return batch * context; }
  std::int64_t queries() const { return keys() / shares; }
  AttentionShape shape() const {
    return {.batch = batch,
            .context = context,
            .heads = heads,
            .kv_heads = kv_heads,
            .head_size = head_size,
            .q_stride = q_columns(),
            .kv_stride = kv_columns(),
            .out_stride = q_columns(),
            .window = window};
  }
};

// Pieces are longer and shorter than blocks of queries, and begin within blocks of keys.
constexpr Case kCases[] = {{1, 4, 1, 1, 8, 2},
                           {2, 96, 4, 2, 5, 2},
                           {1, 96, 2, 1, 12, 3},
                           {2, 200, 2, 2, 8, 4},
                           {1, 256, 2, 1, 16, 2},
                           // Windows.
                           {2, 96, 2, 1, 8, 2, 7},
                           {1, 200, 2, 2, 8, 4, 40},
                           // These have documents, with a window and without.
                           {2, 96, 2, 1, 8, 4, 0, 9},
                           {2, 200, 2, 1, 8, 2, 0, 31},
                           {1, 96, 2, 1, 8, 3, 20, 13}};

// Returns the row of the whole for each row of the share.
std::vector<std::int64_t> RowsOf(const Case& c, std::int64_t share) {
  const std::int64_t length = c.context / (2 * c.shares);
  std::vector<std::int64_t> rows;
  for (std::int64_t b = 0; b < c.batch; ++b) {
    for (const std::int64_t piece : {share, 2 * c.shares - 1 - share}) {
      for (std::int64_t i = 0; i < length; ++i) rows.push_back(b * c.context + piece * length + i);
    }
  }
  return rows;
}

Floats Picked(const Floats& whole, const std::vector<std::int64_t>& rows, std::int64_t columns) {
  Floats picked;
  for (const std::int64_t row : rows) {
    const auto first = whole.begin() + row * columns;
    picked.insert(picked.end(), first, first + columns);
  }
  return picked;
}

class SharedAttentionTest : public OpTest {
 protected:
  // The tensors of all queries, or of those of a share.
  struct Tensors {
    Floats q, d_output;
    std::vector<std::int32_t> starts;
    Floats output, logsumexp, d_q, d_k, d_v;
  };

  void RunBoth(const AttentionShape& shape, const Floats& k, const Floats& v, Tensors& t) {
    const auto queries = static_cast<std::int64_t>(t.q.size());
    t.output = t.d_q = Unset(queries);
    t.logsumexp = Unset(queries / shape.head_size);
    t.d_k = t.d_v = Unset(static_cast<std::int64_t>(k.size()));
    Run(AttentionForward{.shape = shape,
                         .q = t.q.data(),
                         .k = k.data(),
                         .v = v.data(),
                         .output = t.output.data(),
                         .logsumexp = t.logsumexp.data(),
                         .starts = DataOrNull(t.starts)});
    Run(AttentionBackward{.shape = shape,
                          .q = t.q.data(),
                          .k = k.data(),
                          .v = v.data(),
                          .output = t.output.data(),
                          .logsumexp = t.logsumexp.data(),
                          .d_output = t.d_output.data(),
                          .d_q = t.d_q.data(),
                          .d_k = t.d_k.data(),
                          .d_v = t.d_v.data(),
                          .starts = DataOrNull(t.starts)});
  }
};

TEST_P(SharedAttentionTest, SharesTogetherComputeWhatOneDoes) {
  for (const Case& c : kCases) {
    SCOPED_TRACE("context " + std::to_string(c.context) + ", shares " + std::to_string(c.shares) +
                 ", window " + std::to_string(c.window));
    const Floats k = Random(c.keys() * c.kv_columns(), 1), v = Random(c.keys() * c.kv_columns(), 2);
    Tensors whole{.q = Random(c.keys() * c.q_columns(), 3),
                  .d_output = Random(c.keys() * c.q_columns(), 4),
                  .starts = DocumentStarts(c.batch, c.context, c.document)};
    RunBoth(c.shape(), k, v, whole);
    Doubles d_k(k.size()), d_v(v.size());
    const double allowed = SumTolerance(c.head_size, 16);
    const double allowed_grad = SumTolerance(c.context * c.head_size, 16);
    for (std::int64_t share = 0; share < c.shares; ++share) {
      const std::vector<std::int64_t> rows = RowsOf(c, share);
      Tensors part{.q = Picked(whole.q, rows, c.q_columns()),
                   .d_output = Picked(whole.d_output, rows, c.q_columns())};
      for (std::size_t i = 0; i < rows.size() && !whole.starts.empty(); ++i) {
        const std::int64_t position = rows[i] % c.context;
        const auto here = static_cast<std::int64_t>(i) % (c.context / c.shares);
        part.starts.push_back(static_cast<std::int32_t>(
            here - (position - whole.starts[static_cast<std::size_t>(rows[i])])));
      }
      AttentionShape shape = c.shape();
      shape.shares = c.shares;
      shape.share = share;
      RunBoth(shape, k, v, part);
      ExpectNear(part.output, ToDoubles(Picked(whole.output, rows, c.q_columns())), allowed,
                 "output");
      ExpectNear(part.d_q, ToDoubles(Picked(whole.d_q, rows, c.q_columns())), allowed_grad, "d_q");
      for (std::size_t i = 0; i < d_k.size(); ++i) {
        d_k[i] += part.d_k[i];
        d_v[i] += part.d_v[i];
      }
    }
    ExpectNear(whole.d_k, d_k, allowed_grad, "d_k");
    ExpectNear(whole.d_v, d_v, allowed_grad, "d_v");
  }
}

TEST_P(SharedAttentionTest, RefusesSequencesThatCannotBeShared) {
  Floats tensor(64);
  AttentionForward op{.shape = {.batch = 1,
                                .context = 6,
                                .heads = 1,
                                .kv_heads = 1,
                                .head_size = 4,
                                .q_stride = 4,
                                .kv_stride = 4,
                                .out_stride = 4,
                                .shares = 2},
                      .q = tensor.data(),
                      .k = tensor.data(),
                      .v = tensor.data(),
                      .output = tensor.data(),
                      .logsumexp = tensor.data()};
  EXPECT_FALSE(backend_->Run(op).ok());
  op.shape.context = 8;
  op.shape.share = 2;
  EXPECT_FALSE(backend_->Run(op).ok());
}

INSTANTIATE_TEST_SUITE_P(Backends, SharedAttentionTest, ::testing::ValuesIn(TestedBackends()));

}  // namespace
}  // namespace takt::backend::testing
