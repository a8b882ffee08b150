// SPDX-License-Identifier: Apache-2.0
// Tests the ops between the rows of experts and their tokens.
#include "worker/backend/cpu/expert_testing.h"

namespace takt::backend::testing {
namespace {

class ExpertRowOps : public OpTest {};

// Sums are in ascending order of experts, so they have the bits of the loop.
TEST_P(ExpertRowOps, RowsAreCopiedFromTokensAndAddedToThem) {
  for (const MixtureSizes& s : kMixtures) {
    const Routing routing(*backend_, s);
    for (const std::int64_t columns : {1, 20, 133}) {
      const Floats input = Random(s.tokens * columns, 3);
      Floats rows = Unset(routing.count() * columns);
      Run(PackTokens{.rows = routing.Rows(),
                     .by_token = input.data(),
                     .by_row = rows.data(),
                     .columns = columns});
      const Floats factors = Random(routing.count() * columns, 4);
      Floats sums = Random(s.tokens * columns, 5), expected = sums;
      Run(AddRowsToTokens{.rows = routing.Rows(),
                          .choices = routing.choices.data(),
                          .by_row = factors.data(),
                          .by_token = sums.data(),
                          .columns = columns});
      for (std::int64_t row = 0; row < routing.count(); ++row) {
        const std::int64_t token = routing.TokenOf(row);
        for (std::int64_t i = 0; i < columns; ++i) {
          ASSERT_EQ(rows[row * columns + i], input[token * columns + i]);
          expected[token * columns + i] += factors[row * columns + i];
        }
      }
      EXPECT_EQ(sums, expected);
    }
  }
}

TEST_P(ExpertRowOps, NumbersOfPairsAreBroughtInTheOrderOfRowsAndBack) {
  for (const MixtureSizes& s : kMixtures) {
    const Routing routing(*backend_, s);
    Floats rows = Unset(routing.count()), back = Unset(routing.count());
    Run(PackPairs{
        .rows = routing.Rows(), .by_pair = routing.weights.data(), .by_row = rows.data()});
    for (std::int64_t row = 0; row < routing.count(); ++row)
      EXPECT_EQ(rows[row], routing.weights[routing.pairs[row]]);
    Run(UnpackPairs{.rows = routing.Rows(), .by_row = rows.data(), .by_pair = back.data()});
    EXPECT_EQ(back, routing.weights);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, ExpertRowOps, ::testing::ValuesIn(TestedBackends()));

}  // namespace
}  // namespace takt::backend::testing
