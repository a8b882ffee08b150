// SPDX-License-Identifier: Apache-2.0
#include "common/data/documents.h"

#include <vector>

#include "common/data/token_values.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rapidcheck/gtest.h"

namespace takt::data {
namespace {

using testing::ElementsAre;
using Numbers = std::vector<std::int32_t>;

TEST(Documents, BeginAfterTheTokenThatEndsThem) {
  Numbers starts(6);
  StartsFromEnds(Numbers{5, 0, 0, 7, 8, 0}, 0, starts);
  EXPECT_THAT(starts, ElementsAre(0, 0, 2, 3, 3, 3));
  StartsFromEnds(Numbers{5, 0, 0, 7, 8, 0}, 9, starts);
  EXPECT_THAT(starts, ElementsAre(0, 0, 0, 0, 0, 0));
}

TEST(Documents, BeginWhereTheirNumberRises) {
  Numbers starts = {3, 3, 4, 9, 9, 9};
  StartsFromIds(starts, starts);
  EXPECT_THAT(starts, ElementsAre(0, 0, 2, 3, 3, 3));
  starts = {0, 1, 0, 0, 1, 2};
  StartsFromPositions(starts, starts);
  EXPECT_THAT(starts, ElementsAre(0, 0, 2, 3, 3, 3));
}

TEST(Documents, TheLastTokenOfOneHasNoTargetInTheNext) {
  Numbers targets = {1, 2, 3, 4, 5, 6};
  IgnoreLastOfDocuments(Numbers{0, 0, 2, 3, 3, 3}, targets);
  EXPECT_THAT(targets, ElementsAre(1, -100, -100, 4, 5, 6));
}

TEST(Documents, NumbersThatFallAndPositionsThatJumpAreFound) {
  EXPECT_EQ(FirstWrongId(Numbers{0, 0, 2, 2}), 4);
  EXPECT_EQ(FirstWrongId(Numbers{0, 1, 0, 2}), 2);
  EXPECT_EQ(FirstWrongId(Numbers{-1, 0}), 0);
  EXPECT_EQ(FirstWrongPosition(Numbers{0, 1, 0, 0, 1}), 5);
  EXPECT_EQ(FirstWrongPosition(Numbers{1, 2}), 0);
  EXPECT_EQ(FirstWrongPosition(Numbers{0, 1, 1}), 2);
  EXPECT_EQ(FirstWrongPosition(Numbers{0, -1}), 1);
  EXPECT_EQ(FirstWrongPosition(Numbers{0, 2147483647}), 1);
}

// All three ways to say it agree.
RC_GTEST_PROP(Documents, EveryWayToSayItGivesTheSame, ()) {
  Numbers tokens(*rc::gen::inRange<std::size_t>(1, 40));
  for (std::int32_t& token : tokens) token = *rc::gen::inRange(0, 4);
  const std::size_t count = tokens.size();
  Numbers by_ends(count), ids(count), positions(count);
  StartsFromEnds(tokens, 0, by_ends);
  for (std::size_t t = 0; t < count; ++t) {
    ids[t] = by_ends[t];  // they rise from document to document
    positions[t] = static_cast<std::int32_t>(t) - by_ends[t];
    RC_ASSERT(by_ends[t] >= 0 && positions[t] >= 0);
  }
  RC_ASSERT(FirstWrongId(ids) == static_cast<std::int64_t>(count));
  RC_ASSERT(FirstWrongPosition(positions) == static_cast<std::int64_t>(count));
  StartsFromIds(ids, ids);
  StartsFromPositions(positions, positions);
  RC_ASSERT(ids == by_ends);
  RC_ASSERT(positions == by_ends);
}

}  // namespace
}  // namespace takt::data
