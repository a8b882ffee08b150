// SPDX-License-Identifier: Apache-2.0
#include "worker/train/foresight.h"

#include "gtest/gtest.h"

namespace takt::train {
namespace {

TEST(Foresight, HoldsUntilEnoughStepsWereNotClipped) {
  Foresight foresight(/*always=*/false);
  StepId step(1);
  const auto tell = [&](bool clipped) {
    const bool held = foresight.HoldsIn(step);
    foresight.Tell(step, clipped);
    step = StepId(step.value() + 1);
    return held;
  };
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(tell(false)) << i;
  EXPECT_FALSE(tell(false));
  EXPECT_FALSE(tell(true));
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(tell(false)) << i;
  EXPECT_FALSE(tell(false));
}

TEST(Foresight, HoldsWhileEveryNthStepIsClipped) {
  Foresight foresight(/*always=*/false);
  for (StepId step(1); step.value() <= 50; step = StepId(step.value() + 1)) {
    EXPECT_TRUE(foresight.HoldsIn(step)) << step.value();
    foresight.Tell(step, step.value() % 10 == 0);
  }
}

TEST(Foresight, NeverHoldsIfItAlwaysForesees) {
  Foresight foresight(/*always=*/true);
  for (StepId step(1); step.value() <= 5; step = StepId(step.value() + 1)) {
    EXPECT_FALSE(foresight.HoldsIn(step));
    foresight.Tell(step, /*clipped=*/true);
  }
}

// The step after it is decided while a step may still ask about itself.
TEST(Foresight, KeepsTheDecisionOfAStepThatWasTold) {
  Foresight foresight(/*always=*/false);
  for (StepId step(1); step.value() <= 10; step = StepId(step.value() + 1)) {
    foresight.Tell(step, /*clipped=*/false);
    EXPECT_TRUE(foresight.HoldsIn(step));
  }
  EXPECT_FALSE(foresight.HoldsIn(StepId(11)));
}

}  // namespace
}  // namespace takt::train
