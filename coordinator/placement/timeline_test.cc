// SPDX-License-Identifier: Apache-2.0
#include "coordinator/placement/timeline.h"

#include "gtest/gtest.h"

namespace takt::placement {
namespace {

// Takes `workers` of resource 0.
std::optional<double> EarliestFor(const Timeline& timeline, int workers, double seconds,
                                  double latest = kForever) {
  const auto slot =
      timeline.Earliest(seconds, latest, [&](const Amounts& free) -> std::optional<Amounts> {
        return free[0] >= workers ? std::optional(Amounts{workers}) : std::nullopt;
      });
  return slot ? std::optional(slot->from) : std::nullopt;
}

TEST(Timeline, WhatIsFreeNowIsFreeForEver) {
  const Timeline timeline({3});
  EXPECT_EQ(EarliestFor(timeline, 3, kForever), 0);
  EXPECT_EQ(EarliestFor(timeline, 4, 1), std::nullopt);
}

TEST(Timeline, ASlotBeginsWhenEnoughIsFree) {
  Timeline timeline({1});
  timeline.Add(10, kForever, {2});
  timeline.Add(5, kForever, {1});
  EXPECT_EQ(EarliestFor(timeline, 1, 100), 0);
  EXPECT_EQ(EarliestFor(timeline, 2, 100), 5);
  EXPECT_EQ(EarliestFor(timeline, 4, 100), 10);
  EXPECT_EQ(EarliestFor(timeline, 4, 100, /*latest=*/9), std::nullopt);
}

TEST(Timeline, ASlotFitsBetweenWhatIsTaken) {
  Timeline timeline({2});
  timeline.Take(10, 20, {2});
  timeline.Take(25, 30, {1});
  EXPECT_EQ(EarliestFor(timeline, 2, 10), 0);
  EXPECT_EQ(EarliestFor(timeline, 2, 11), 30);
  EXPECT_EQ(EarliestFor(timeline, 1, 11), 20);
  EXPECT_EQ(EarliestFor(timeline, 2, 5), 0);
  timeline.Take(0, 1, {1});
  EXPECT_EQ(EarliestFor(timeline, 2, 9), 1);
  EXPECT_EQ(EarliestFor(timeline, 2, 10), 30);
}

TEST(Timeline, TheSameChoiceStaysFree) {
  Timeline timeline({1, 0});
  timeline.Add(5, kForever, {0, 1});
  timeline.Take(10, 20, {1, 0});
  // One of either is free at each time, but not the same one before 5.
  const auto slot = timeline.Earliest(12, kForever, [](const Amounts& free) {
    return free[0] > 0   ? std::optional(Amounts{1, 0})
           : free[1] > 0 ? std::optional(Amounts{0, 1})
                         : std::nullopt;
  });
  ASSERT_TRUE(slot.has_value());
  EXPECT_EQ(slot->from, 5);
  EXPECT_EQ(slot->taken, Amounts({0, 1}));
}

}  // namespace
}  // namespace takt::placement
