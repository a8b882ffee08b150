// SPDX-License-Identifier: Apache-2.0
#include "common/tokenizer/added_tokens.h"

#include "gtest/gtest.h"

namespace takt::tokenizer {
namespace {

const AddedTokens& Tokens() {
  static const auto* const tokens = new AddedTokens({{.content = "<a>", .id = 1},
                                                     {.content = "<a><b>", .id = 2},
                                                     {.content = "<end>", .id = 3, .special = true},
                                                     {.content = "end>", .id = 4}});
  return *tokens;
}

TEST(AddedTokens, FindsTheFirstAndThenTheLongest) {
  const auto found = Tokens().Find("x<a><b><a>", 0, false);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->begin, 1U);
  EXPECT_EQ(found->end, 7U);
  EXPECT_EQ(found->id, 2);
  EXPECT_EQ(Tokens().Find("x<a><b><a>", 7, false)->id, 1);
  EXPECT_FALSE(Tokens().Find("nothing <", 0, false).has_value());
}

TEST(AddedTokens, TheContentOfASpecialTokenIsTextUnlessItIsRequested) {
  EXPECT_EQ(Tokens().Find("<end>", 0, true)->id, 3);
  // Nothing is found inside it either.
  EXPECT_FALSE(Tokens().Find("<end>", 0, false).has_value());
  EXPECT_EQ(Tokens().Find("<end>end>", 0, false)->begin, 5U);
}

}  // namespace
}  // namespace takt::tokenizer
