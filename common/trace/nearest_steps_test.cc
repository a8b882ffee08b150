// SPDX-License-Identifier: Apache-2.0
#include "common/trace/nearest_steps.h"

#include "gmock/gmock.h"

namespace takt::trace {
namespace {

using ::testing::StartsWith;

TEST(NearestSteps, NamesTheStepsOnBothSidesOfAGap) {
  const StepId steps[] = {StepId(4), StepId(8), StepId(12)};
  EXPECT_EQ(NearestSteps(steps, StepId(5), StepId(6)),
            "the nearest that are: 4 and 8; of steps shorter than 20 ms only some are measured, so "
            "ask for one that is, or for a longer range");
  EXPECT_THAT(NearestSteps(steps, StepId(1), StepId(3)), StartsWith("the first that is: 4;"));
  EXPECT_THAT(NearestSteps(steps, StepId(13), StepId(13)), StartsWith("the last that is: 12;"));
}

}  // namespace
}  // namespace takt::trace
