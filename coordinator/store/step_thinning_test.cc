// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/step_thinning.h"

#include <cstdint>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::store {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Returns what is left of a log of the steps from 1 to `last`.
std::set<std::int64_t> LogOf(std::int64_t last, std::int64_t window) {
  std::set<std::int64_t> log;
  for (std::int64_t step = 1; step <= last; ++step) {
    log.insert(step);
    for (const StepId gone : StepsToThin(StepId(step), window)) {
      EXPECT_EQ(log.erase(gone.value()), 1u) << "step " << gone.value() << " goes once";
    }
  }
  return log;
}

TEST(StepThinning, OlderStepsAreFartherApart) {
  EXPECT_THAT(LogOf(25, 10), ElementsAre(10, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25));
  EXPECT_THAT(LogOf(135, 10), ElementsAre(40, 50, 60, 70, 80, 90, 100, 110, 120, 126, 127, 128, 129,
                                          130, 131, 132, 133, 134, 135));
  EXPECT_THAT(LogOf(205, 10), ElementsAre(100, 110, 120, 130, 140, 150, 160, 170, 180, 190, 196,
                                          197, 198, 199, 200, 201, 202, 203, 204, 205));
}

TEST(StepThinning, NothingGoesWithinTheWindowOrWithoutOne) {
  EXPECT_EQ(LogOf(100, 100).size(), 100u);
  EXPECT_THAT(StepsToThin(StepId(1'000'000), 0), IsEmpty());
}

// Each tenfold of steps adds nine tenths of a window.
TEST(StepThinning, AMillionStepsTakeALogarithm) { EXPECT_EQ(LogOf(1'000'000, 1000).size(), 3700u); }

}  // namespace
}  // namespace takt::store
