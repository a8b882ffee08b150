// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cuda/clock_reading.h"

#include <gtest/gtest.h>

#include <vector>

namespace takt::backend::cuda {
namespace {

// Returns the number of readings until the best, which ClosestReading kept last.
int KeptOf(const std::vector<std::int64_t>& gaps, ClockReading& best) {
  std::size_t next = 0;
  int kept = -1;
  const auto read = [&]() -> absl::StatusOr<ClockReading> {
    const std::int64_t gap = gaps[next % gaps.size()];
    ++next;
    return ClockReading{.before = 1000, .after = 1000 + gap};
  };
  best = ClosestReading(read, [&] { kept = static_cast<int>(next) - 1; }).value();
  return kept;
}

TEST(ClosestReading, StopsAtOneThatIsCloseEnough) {
  ClockReading best;
  EXPECT_EQ(KeptOf({50'000, 4'000, 1'000}, best), 1);
  EXPECT_EQ(best.gap(), 4'000);
  EXPECT_EQ(best.nanos(), 3'000);
}

TEST(ClosestReading, KeepsTheBestWhereNoneIsCloseEnough) {
  ClockReading best;
  EXPECT_EQ(KeptOf({90'000, 30'000, 60'000, 15'000, 70'000}, best), 3);
  EXPECT_EQ(best.gap(), 15'000);
}

TEST(ClosestReading, ReturnsAnErrorOfTheDevice) {
  const auto fail = []() -> absl::StatusOr<ClockReading> { return absl::InternalError("gone"); };
  EXPECT_EQ(ClosestReading(fail, [] {}).status().message(), "gone");
}

}  // namespace
}  // namespace takt::backend::cuda
