// SPDX-License-Identifier: Apache-2.0
#include "common/trace/labels.h"

#include "gtest/gtest.h"

namespace takt::trace {
namespace {

Timeline WithSteps(int count, int first, int distance) {
  Timeline timeline;
  for (int i = 0; i < count; ++i) {
    timeline.steps.push_back({.step = StepId(first + i * distance)});
  }
  return timeline;
}

TEST(StepsName, NamesEveryStepThatIsThereAndNoOther) {
  EXPECT_EQ(StepsName(WithSteps(1, 7, 1)), "step 7");
  EXPECT_EQ(StepsName(WithSteps(4, 5, 1)), "steps 5 to 8");
  EXPECT_EQ(StepsName(WithSteps(3, 46, 2)), "steps 46, 48, 50");
}

TEST(StepsName, StaysShortWithManySteps) {
  EXPECT_EQ(StepsName(WithSteps(100, 1, 1)), "steps 1 to 100");
  EXPECT_EQ(StepsName(WithSteps(50, 46, 2)), "50 steps from 46 to 144");
}

TEST(RankName, SaysWhereARankIsWhereAPpRankHasSeveral) {
  JobTrace trace;
  trace.mesh = {.pp_size = 4};
  EXPECT_EQ(RankName(trace, 3), "rank 3");
  trace.mesh = {.pp_size = 2, .dp_size = 2};
  EXPECT_EQ(RankName(trace, 3), "rank 3 (pp 1, dp 1)");
  trace.mesh = {.pp_size = 2, .tp_size = 4};
  EXPECT_EQ(RankName(trace, 7), "rank 7 (pp 1, dp 0, tp 3)");
}

TEST(Title, SaysWhichStepsAreThere) {
  JobTrace trace;
  trace.job = "kjv-gpt";
  Timeline timeline = WithSteps(3, 46, 2);
  timeline.trace = &trace;
  timeline.clock_error_nanos = 12'000;
  EXPECT_EQ(Title(timeline), "job kjv-gpt, steps 46, 48, 50, clocks within 0.012 ms");
}

}  // namespace
}  // namespace takt::trace
