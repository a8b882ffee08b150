// SPDX-License-Identifier: Apache-2.0
#include "cli/terminal/loss_curve.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::cli {
namespace {

using testing::ElementsAre;

TEST(LossCurve, FallsFromTheUpperLeftToTheLowerRight) {
  LossCurve curve;
  for (int step = 1; step <= 8; ++step) curve.Add(step, 9 - step);
  const auto picture = curve.Draw({.columns = 8, .rows = 4});
  ASSERT_TRUE(picture.has_value());
  EXPECT_EQ(picture->top, 8);
  EXPECT_EQ(picture->bottom, 1);
  EXPECT_THAT(picture->rows, ElementsAre("***     ",  //
                                         "  ***   ",  //
                                         "    *** ",  //
                                         "      **"));
}

TEST(LossCurve, BrailleHasEightDotsInACharacter) {
  LossCurve curve;
  curve.Add(1, 1);
  curve.Add(2, 0);
  const auto picture = curve.Draw({.columns = 1, .rows = 1, .unicode = true});
  // The first dot of the left column; the right column joins it to the last one.
  EXPECT_THAT(picture->rows, ElementsAre("\u28b9"));
}

TEST(LossCurve, StaysSmallHoweverLongTheJobAndKeepsItsMeans) {
  LossCurve curve;
  constexpr int kSteps = 1'000'000;
  for (int step = 1; step <= kSteps; ++step) curve.Add(step, step <= kSteps / 2 ? 3 : 1);
  const auto picture = curve.Draw({.columns = 10, .rows = 2});
  EXPECT_EQ(picture->top, 3);
  EXPECT_EQ(picture->bottom, 1);
  EXPECT_EQ(picture->rows[0].substr(0, 4), "****");
  EXPECT_EQ(picture->rows[1].substr(6), "****");
  EXPECT_EQ(curve.last_step(), kSteps);
}

TEST(LossCurve, WhatIsNotFiniteIsAGapAndAloneIsNoPicture) {
  LossCurve curve;
  EXPECT_FALSE(curve.Draw({.columns = 4, .rows = 1}).has_value());
  curve.Add(1, std::numeric_limits<double>::quiet_NaN());
  EXPECT_FALSE(curve.Draw({.columns = 4, .rows = 1}).has_value());
  curve.Add(2, 5);
  curve.Add(3, std::numeric_limits<double>::infinity());
  curve.Add(4, 5);
  EXPECT_THAT(curve.Draw({.columns = 4, .rows = 1})->rows, ElementsAre(" * *"));
  EXPECT_FALSE(curve.Draw({.columns = 0, .rows = 1}).has_value());
  EXPECT_FALSE(curve.Draw({.columns = 1, .rows = 0}).has_value());
}

TEST(LossCurve, AJobThatIsWatchedFromALaterStepBeginsThere) {
  LossCurve curve;
  curve.Add(500, 2);
  curve.Add(501, 1);
  EXPECT_EQ(curve.first_step(), 500);
  EXPECT_THAT(curve.Draw({.columns = 2, .rows = 1})->rows, ElementsAre("**"));
}

}  // namespace
}  // namespace takt::cli
