// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/recent_clips.h"

#include <limits>

#include "gtest/gtest.h"

namespace takt::job {
namespace {

TEST(RecentClips, CountsTheLastSteps) {
  RecentClips clips;
  for (int i = 0; i < 49; ++i) {
    clips.Add(2, 1);
    EXPECT_FALSE(clips.share().has_value());
  }
  clips.Add(1, 1);
  EXPECT_EQ(clips.share(), 0.98);
  for (int i = 0; i < 100; ++i) clips.Add(0.5, 1);
  EXPECT_EQ(clips.share(), 0);
  clips.Add(std::numeric_limits<double>::quiet_NaN(), 1);
  EXPECT_EQ(clips.share(), 0.01);
}

TEST(RecentClips, AreNoneWhereNothingIsClipped) {
  RecentClips clips;
  for (int i = 0; i < 50; ++i) clips.Add(1e9, 0);
  EXPECT_EQ(clips.share(), 0);
}

}  // namespace
}  // namespace takt::job
