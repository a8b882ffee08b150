// SPDX-License-Identifier: Apache-2.0
#include "worker/session/trace_sampler.h"

#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::session {
namespace {

std::set<int> Taken(double seconds, int steps = 256, int first_steps = 0) {
  TraceSampler sampler(first_steps);
  std::set<int> taken;
  for (int step = 1; step <= steps; ++step) {
    if (sampler.Takes(StepId(step), seconds)) taken.insert(step);
  }
  return taken;
}

TEST(TraceSampler, TakesEveryStepThatLastsLongEnough) {
  EXPECT_EQ(Taken(0.020).size(), 256u);
  EXPECT_EQ(Taken(3).size(), 256u);
}

TEST(TraceSampler, TakesAtMostFiftyASecondOfShortOnes) {
  for (const double seconds : {0.019, 0.005, 0.001, 0.0001}) {
    const auto steps = static_cast<int>(2 / seconds);
    EXPECT_LE(Taken(seconds, steps).size(), 100u) << seconds;
    EXPECT_GE(Taken(seconds, steps).size(), 40u) << seconds;
  }
}

TEST(TraceSampler, TakesTheFirstStepsHoweverShort) {
  EXPECT_THAT(Taken(0.0001, 1, 4), ::testing::ElementsAre(1));
  EXPECT_THAT(Taken(0.0001, 20, 4), ::testing::ElementsAre(1, 2, 3, 4));
}

TEST(TraceSampler, RanksThatDisagreeHaveStepsInCommon) {
  const std::set<int> rarely = Taken(0.0024), often = Taken(0.0026);
  EXPECT_LT(rarely.size(), often.size());
  for (const int step : rarely) EXPECT_TRUE(often.contains(step)) << step;
}

}  // namespace
}  // namespace takt::session
