// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "worker/backend/cpu/op_testing.h"

namespace takt::backend::testing {
namespace {

// Puts q, k and v in one tensor of rows [q heads, k heads, v heads], as a fused projection writes
// them.
struct Case {
  std::int64_t batch, context, heads, kv_heads, head_size, window = 0;
  std::int64_t document = 0;  // of DocumentStarts
  std::int64_t q_columns() const { return heads * head_size; }
  std::int64_t columns() const { return (heads + 2 * kv_heads) * head_size; }
  std::int64_t rows() const { return batch * context; }
  AttentionShape shape() const {
    return {.batch = batch,
            .context = context,
            .heads = heads,
            .kv_heads = kv_heads,
            .head_size = head_size,
            .q_stride = columns(),
            .kv_stride = columns(),
            .out_stride = q_columns(),
            .window = window};
  }
};

// The shapes are around the kernel's blocks of 32 queries and 64 keys, and vectors of 4, 8 and 16.
constexpr Case kCases[] = {{1, 1, 1, 1, 8},
                           {2, 1, 2, 2, 12},
                           {1, 5, 3, 1, 4},
                           {2, 33, 2, 2, 12},
                           {1, 64, 2, 1, 64},
                           {1, 65, 1, 1, 8},
                           {1, 100, 4, 2, 5},
                           {2, 129, 1, 1, 16},
                           // Windows, some of which hide whole blocks of keys from a query or from
                           // a block of queries.
                           {1, 5, 3, 1, 4, 1},
                           {2, 33, 2, 2, 12, 32},
                           {1, 65, 1, 1, 8, 64},
                           {1, 100, 4, 2, 5, 7},
                           {2, 129, 1, 1, 16, 40},
                           {1, 200, 2, 1, 8, 65},
                           // Documents, within and across blocks, with a window and without.
                           {1, 5, 3, 1, 4, 0, 2},
                           {2, 33, 2, 2, 12, 0, 1},
                           {1, 65, 1, 1, 8, 0, 64},
                           {3, 100, 4, 2, 5, 0, 20},
                           {2, 129, 1, 1, 16, 0, 31},
                           {2, 200, 2, 1, 8, 0, 70},
                           {2, 100, 2, 1, 8, 9, 20}};

Doubles Attention(const Case& c, const Doubles& qkv) {
  Doubles output(static_cast<std::size_t>(c.rows() * c.q_columns()));
  const std::vector<std::int32_t> starts = DocumentStarts(c.batch, c.context, c.document);
  const auto at = [&](std::int64_t row, std::int64_t column) {
    return qkv[static_cast<std::size_t>(row * c.columns() + column)];
  };
  for (std::int64_t b = 0; b < c.batch; ++b) {
    for (std::int64_t h = 0; h < c.heads; ++h) {
      const std::int64_t q_column = h * c.head_size;
      const std::int64_t k_column = (c.heads + h / (c.heads / c.kv_heads)) * c.head_size;
      const std::int64_t v_column = k_column + c.kv_heads * c.head_size;
      for (std::int64_t t = b * c.context; t < (b + 1) * c.context; ++t) {
        Doubles p;
        std::int64_t first = b * c.context;
        if (c.window > 0) first = std::max(first, t - c.window + 1);
        if (!starts.empty())
          first = std::max(first, b * c.context + starts[static_cast<std::size_t>(t)]);
        for (std::int64_t s = first; s <= t; ++s) {
          double score = 0;
          for (std::int64_t d = 0; d < c.head_size; ++d)
            score += at(t, q_column + d) * at(s, k_column + d);
          p.push_back(score / std::sqrt(static_cast<double>(c.head_size)));
        }
        const double max = *std::max_element(p.begin(), p.end());
        double sum = 0;
        for (double& value : p) sum += value = std::exp(value - max);
        for (std::size_t s = 0; s < p.size(); ++s) {
          for (std::int64_t d = 0; d < c.head_size; ++d) {
            output[static_cast<std::size_t>(t * c.q_columns() + q_column + d)] +=
                p[s] / sum * at(first + static_cast<std::int64_t>(s), v_column + d);
          }
        }
      }
    }
  }
  return output;
}

class AttentionTest : public OpTest {
 protected:
  void Forward(const Case& c, const Floats& qkv) {
    starts_ = DocumentStarts(c.batch, c.context, c.document);
    output_ = Unset(c.rows() * c.q_columns());
    logsumexp_ = Unset(c.rows() * c.heads);
    Run(AttentionForward{.shape = c.shape(),
                         .q = qkv.data(),
                         .k = qkv.data() + c.q_columns(),
                         .v = qkv.data() + c.q_columns() + c.kv_heads * c.head_size,
                         .output = output_.data(),
                         .logsumexp = logsumexp_.data(),
                         .starts = DataOrNull(starts_)});
  }
  std::vector<std::int32_t> starts_;
  Floats output_, logsumexp_;
};

TEST_P(AttentionTest, ForwardAgreesWithDouble) {
  for (const Case& c : kCases) {
    const Floats qkv = Random(c.rows() * c.columns(), 1);
    Forward(c, qkv);
    // A rounding of a score (of size up to a few sqrt(D)) is a relative error of its probability.
    ExpectNear(output_, Attention(c, ToDoubles(qkv)), SumTolerance(c.head_size, 16), "output");
  }
}

TEST_P(AttentionTest, SurvivesScoresThatOverflowWithoutTheMaximum) {
  for (const Case& c : {Case{1, 70, 1, 1, 8}, Case{1, 140, 1, 1, 8, 9}}) {
    const Floats qkv = Random(c.rows() * c.columns(), 1, 30);
    Forward(c, qkv);
    // Scores of size 3000 are known to 3000 roundings, and so are probabilities; values have size
    // 30.
    ExpectNear(output_, Attention(c, ToDoubles(qkv)), 30 * SumTolerance(c.head_size, 3000),
               "output");
  }
}

TEST_P(AttentionTest, AWindowThatHidesNothingChangesNoBit) {
  Case c{2, 130, 2, 1, 12};
  const Floats qkv = Random(c.rows() * c.columns(), 1);
  Forward(c, qkv);
  const Floats output = output_, logsumexp = logsumexp_;
  for (const std::int64_t window : {130, 131, 1000}) {
    c.window = window;
    Forward(c, qkv);
    EXPECT_EQ(output_, output) << window;
    EXPECT_EQ(logsumexp_, logsumexp) << window;
  }
}

// A document that is as long as the sequence has starts that are all 0.
TEST_P(AttentionTest, OneDocumentHasTheBitsOfNone) {
  Case c{3, 130, 2, 1, 12};
  const Floats qkv = Random(c.rows() * c.columns(), 1);
  Forward(c, qkv);
  const Floats output = output_, logsumexp = logsumexp_;
  c.batch = 1;  // the first document of the first sequence is of this length
  c.document = 130;
  const std::size_t outputs = static_cast<std::size_t>(c.rows() * c.q_columns());
  const std::size_t sums = static_cast<std::size_t>(c.rows() * c.heads);
  Forward(c, qkv);
  EXPECT_EQ(output_, Floats(output.begin(), output.begin() + static_cast<std::ptrdiff_t>(outputs)));
  EXPECT_EQ(logsumexp_,
            Floats(logsumexp.begin(), logsumexp.begin() + static_cast<std::ptrdiff_t>(sums)));
}

TEST_P(AttentionTest, BackwardAgreesWithFiniteDifferences) {
  for (const Case& c : kCases) {
    const Floats qkv = Random(c.rows() * c.columns(), 1),
                 d_output = Random(c.rows() * c.q_columns(), 2);
    Forward(c, qkv);
    Floats d_qkv = Unset(c.rows() * c.columns());
    const std::int64_t k = c.q_columns(), v = k + c.kv_heads * c.head_size;
    Run(AttentionBackward{.shape = c.shape(),
                          .q = qkv.data(),
                          .k = qkv.data() + k,
                          .v = qkv.data() + v,
                          .output = output_.data(),
                          .logsumexp = logsumexp_.data(),
                          .d_output = d_output.data(),
                          .d_q = d_qkv.data(),
                          .d_k = d_qkv.data() + k,
                          .d_v = d_qkv.data() + v,
                          .starts = DataOrNull(starts_)});
    // Checks about 40 elements, at a stride that meets every head and both ends of the context.
    const std::size_t stride = qkv.size() / 40 + 1;
    const Doubles expected = FiniteDifferences([&](const Doubles& x) { return Attention(c, x); },
                                               ToDoubles(qkv), d_output, stride | 1);
    ExpectNearWhereKnown(d_qkv, expected, SumTolerance(c.context * c.head_size, 16), "d_qkv");
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, AttentionTest, ::testing::ValuesIn(TestedBackends()));

}  // namespace
}  // namespace takt::backend::testing
