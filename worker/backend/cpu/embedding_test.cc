// SPDX-License-Identifier: Apache-2.0
// Tests the embedding. It adds in a fixed order, so the bits are those of simple loops.
#include <cmath>

#include "worker/backend/cpu/op_testing.h"

namespace takt::backend::testing {
namespace {

class EmbeddingTest : public OpTest {};

TEST_P(EmbeddingTest, AddsTokenAndPosition) {
  const std::int64_t batch = 3, context = 5, columns = 19, vocab = 7, positions = 9;
  const auto tokens = RandomTokens(batch * context, vocab, 1);
  const Floats token_table = Random(vocab * columns, 2),
               position_table = Random(positions * columns, 3);
  const auto starts = DocumentStarts(batch, context, 2);
  for (const int way : {0, 1, 2}) {
    const bool with_positions = way > 0, with_documents = way > 1;
    Floats output = Unset(batch * context * columns);
    Run(EmbeddingForward{.tokens = tokens.data(),
                         .token_table = token_table.data(),
                         .position_table = with_positions ? position_table.data() : nullptr,
                         .output = output.data(),
                         .batch = batch,
                         .context = context,
                         .columns = columns,
                         .starts = with_documents ? starts.data() : nullptr});
    for (std::int64_t i = 0; i < batch * context * columns; ++i) {
      const std::int64_t row = i / columns, column = i % columns;
      const std::int64_t start = with_documents ? starts[static_cast<std::size_t>(row)] : 0;
      float expected = token_table[static_cast<std::size_t>(
          tokens[static_cast<std::size_t>(row)] * columns + column)];
      if (with_positions)
        expected +=
            position_table[static_cast<std::size_t>((row % context - start) * columns + column)];
      ASSERT_EQ(output[static_cast<std::size_t>(i)], expected);
    }
  }
}

// The tables have only words 3 to 5 of 7. Other rows change no number to which they are added, not
// even -0.0.
TEST_P(EmbeddingTest, OfSomeWordsLeavesOtherTokensOut) {
  const std::int64_t batch = 2, context = 20, columns = 19, vocab = 7, first = 3, words = 3;
  const auto tokens = RandomTokens(batch * context, vocab, 1);
  const Floats table = Random(words * columns, 2), positions = Random(context * columns, 3);
  const auto is_here = [&](std::int64_t row) {
    const std::int64_t token = tokens[static_cast<std::size_t>(row)];
    return token >= first && token < first + words;
  };
  Floats output = Unset(batch * context * columns);
  Run(EmbeddingForward{.tokens = tokens.data(),
                       .token_table = table.data(),
                       .position_table = positions.data(),
                       .output = output.data(),
                       .batch = batch,
                       .context = context,
                       .columns = columns,
                       .first_word = first,
                       .num_words = words});
  const Floats d_output = Random(batch * context * columns, 4);
  Floats d_table = Unset(words * columns), expected_gradient(d_table.size());
  Run(EmbeddingBackward{.tokens = tokens.data(),
                        .d_output = d_output.data(),
                        .d_token_table = d_table.data(),
                        .batch = batch,
                        .context = context,
                        .columns = columns,
                        .vocab = words,
                        .first_word = first});
  for (std::int64_t i = 0; i < batch * context * columns; ++i) {
    const std::int64_t row = i / columns, column = i % columns;
    const float found = output[static_cast<std::size_t>(i)];
    if (!is_here(row)) {
      ASSERT_TRUE(found == 0 && std::signbit(found)) << i;
      continue;
    }
    const std::int64_t word = tokens[static_cast<std::size_t>(row)] - first;
    const auto place = static_cast<std::size_t>(word * columns + column);
    ASSERT_EQ(found,
              table[place] + positions[static_cast<std::size_t>(row % context * columns + column)]);
    expected_gradient[place] += d_output[static_cast<std::size_t>(i)];
  }
  EXPECT_EQ(d_table, expected_gradient);
}

TEST_P(EmbeddingTest, BackwardSumsRowsOfEqualTokensInOrder) {
  const std::int64_t batch = 3, context = 50, columns = 70, vocab = 7, positions = 60;
  const auto tokens = RandomTokens(batch * context, vocab - 1, 1);  // the last token never occurs
  const Floats d_output = Random(batch * context * columns, 2);
  for (const int way : {0, 1, 2}) {
    const bool accumulate = way > 0;
    const auto starts = DocumentStarts(batch, context, way > 1 ? 9 : context);
    Floats d_token = accumulate ? Random(vocab * columns, 3) : Unset(vocab * columns);
    Floats d_position = accumulate ? Random(positions * columns, 4) : Unset(positions * columns);
    Floats expected_token = accumulate ? d_token : Floats(d_token.size());
    Floats expected_position = accumulate ? d_position : Floats(d_position.size());
    Run(EmbeddingBackward{.tokens = tokens.data(),
                          .d_output = d_output.data(),
                          .d_token_table = d_token.data(),
                          .d_position_table = d_position.data(),
                          .batch = batch,
                          .context = context,
                          .columns = columns,
                          .vocab = vocab,
                          .positions = positions,
                          .accumulate = accumulate,
                          .starts = way > 1 ? starts.data() : nullptr});
    for (std::int64_t i = 0; i < batch * context * columns; ++i) {
      const std::int64_t row = i / columns, column = i % columns;
      const std::int64_t start = way > 1 ? starts[static_cast<std::size_t>(row)] : 0;
      const float d = d_output[static_cast<std::size_t>(i)];
      expected_token[static_cast<std::size_t>(tokens[static_cast<std::size_t>(row)] * columns +
                                              column)] += d;
      expected_position[static_cast<std::size_t>((row % context - start) * columns + column)] += d;
    }
    EXPECT_EQ(d_token, expected_token);
    EXPECT_EQ(d_position, expected_position);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, EmbeddingTest, ::testing::ValuesIn(TestedBackends()));

}  // namespace
}  // namespace takt::backend::testing
