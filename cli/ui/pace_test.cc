// SPDX-License-Identifier: Apache-2.0
#include "cli/ui/pace.h"

#include "gmock/gmock.h"

namespace takt::cli {
namespace {

TEST(Pace, KeepsTheShareOfACore) {
  const absl::Duration shortest = absl::Seconds(1);
  EXPECT_EQ(PauseAfter(absl::ZeroDuration(), shortest), shortest);
  EXPECT_EQ(PauseAfter(absl::Milliseconds(10), shortest), shortest);
  for (const int milliseconds : {20, 100, 400}) {
    const absl::Duration used = absl::Milliseconds(milliseconds);
    EXPECT_LE(absl::FDivDuration(used, PauseAfter(used, shortest)), kShareOfCore + 1e-9);
  }
  EXPECT_EQ(PauseAfter(absl::Seconds(10), shortest), absl::Seconds(30));
}

TEST(Pace, ProcessorTimeGoesOnWithWork) {
  const absl::Duration begin = ProcessorTime();
  double sum = 0;
  while (ProcessorTime() == begin) sum += 1;
  EXPECT_GT(ProcessorTime(), begin);
  EXPECT_GE(sum, 0);
}

TEST(Pace, AStopEndsAPause) {
  std::stop_source source;
  source.request_stop();
  EXPECT_FALSE(Pause(source.get_token(), absl::InfiniteDuration()));
  EXPECT_TRUE(Pause(std::stop_source().get_token(), absl::ZeroDuration()));
}

}  // namespace
}  // namespace takt::cli
