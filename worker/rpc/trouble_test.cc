// SPDX-License-Identifier: Apache-2.0
#include "worker/rpc/trouble.h"

#include "gtest/gtest.h"

namespace takt::worker_rpc {
namespace {

constexpr absl::StatusCode kGone = absl::StatusCode::kUnavailable;

TEST(Trouble, IsNewsOnceForEachKindAndOnceAMinute) {
  Trouble trouble;
  EXPECT_TRUE(trouble.IsNews(kGone, absl::Seconds(100)));
  EXPECT_FALSE(trouble.IsNews(kGone, absl::Seconds(101)));
  EXPECT_FALSE(trouble.IsNews(kGone, absl::Seconds(159)));
  EXPECT_TRUE(trouble.IsNews(kGone, absl::Seconds(160)));
  EXPECT_FALSE(trouble.IsNews(kGone, absl::Seconds(219)));
  EXPECT_TRUE(trouble.IsNews(absl::StatusCode::kDeadlineExceeded, absl::Seconds(219)));
}

TEST(Trouble, ThatWasOverIsNewsAgain) {
  Trouble trouble;
  EXPECT_TRUE(trouble.IsNews(kGone, absl::Seconds(1)));
  trouble.Over();
  EXPECT_TRUE(trouble.IsNews(kGone, absl::Seconds(2)));
}

}  // namespace
}  // namespace takt::worker_rpc
