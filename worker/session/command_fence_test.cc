// SPDX-License-Identifier: Apache-2.0
#include "worker/session/command_fence.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::session {
namespace {

using control::RefusalCause;
using ::testing::HasSubstr;

TEST(CommandFence, ObeysTheFirstCoordinatorAndLaterOnesOfItsCluster) {
  CommandFence fence;
  EXPECT_FALSE(fence.Welcome("a", 3, /*holds=*/false).has_value());
  EXPECT_FALSE(fence.Refuses(3));
  EXPECT_FALSE(fence.Welcome("a", 4, /*holds=*/true).has_value());
  EXPECT_FALSE(fence.Refuses(4));
  EXPECT_EQ(fence.epoch(), 4);
}

TEST(CommandFence, RefusesACoordinatorOfAFormerLifeWhetherItHoldsARankOrNot) {
  for (const bool holds : {false, true}) {
    CommandFence fence;
    fence.Welcome("a", 4, false);
    const auto refused = fence.Welcome("a", 3, holds);
    ASSERT_TRUE(refused.has_value());
    EXPECT_EQ(refused->cause, RefusalCause::kLaterEpoch);
    EXPECT_THAT(refused->reason, HasSubstr("epoch 4"));
    EXPECT_TRUE(fence.Refuses(3));
    EXPECT_FALSE(fence.Adopt());
    EXPECT_TRUE(fence.Refuses(3));
    // The later one is obeyed when it is back.
    EXPECT_FALSE(fence.Welcome("a", 4, holds).has_value());
    EXPECT_FALSE(fence.Refuses(4));
  }
}

TEST(CommandFence, RefusesASingleCommandOfALowerEpoch) {
  CommandFence fence;
  fence.Welcome("a", 4, false);
  EXPECT_TRUE(fence.Refuses(3));
}

TEST(CommandFence, RefusesAnotherClusterWhileItHoldsARank) {
  CommandFence fence;
  fence.Welcome("a", 7, false);
  const auto refused = fence.Welcome("b", 1, /*holds=*/true);
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->cause, RefusalCause::kOtherCluster);
  EXPECT_THAT(refused->reason, HasSubstr("cluster a"));
  EXPECT_TRUE(fence.Refuses(1));
  EXPECT_TRUE(fence.Refuses(100)) << "epochs of two clusters say nothing about each other";
  EXPECT_EQ(fence.cluster_id(), "a");
  // Its own coordinator may come back.
  EXPECT_FALSE(fence.Welcome("a", 8, true).has_value());
}

TEST(CommandFence, AnIdleWorkerObeysAnyCluster) {
  CommandFence fence;
  fence.Welcome("a", 7, false);
  EXPECT_FALSE(fence.Welcome("b", 1, /*holds=*/false).has_value());
  EXPECT_FALSE(fence.Refuses(1));
  EXPECT_EQ(fence.cluster_id(), "b");
}

TEST(CommandFence, RemembersTheEpochsOfEachCluster) {
  CommandFence fence;
  fence.Welcome("a", 7, false);
  fence.Welcome("b", 1, false);
  const auto refused = fence.Welcome("a", 6, false);
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->cause, RefusalCause::kLaterEpoch);
}

TEST(CommandFence, AnAdoptedRankBelongsToTheNewCluster) {
  CommandFence fence;
  fence.Welcome("a", 7, false);
  fence.Welcome("b", 1, true);
  EXPECT_TRUE(fence.Adopt());
  EXPECT_FALSE(fence.Refuses(1));
  EXPECT_FALSE(fence.Welcome("b", 2, true).has_value());
  EXPECT_TRUE(fence.Welcome("a", 8, true).has_value()) << "the former cluster has lost the job";
}

TEST(CommandFence, ARankOfACoordinatorBeforeClustersGoesToTheOneThatComes) {
  CommandFence fence;
  EXPECT_FALSE(fence.Welcome("", 0, false).has_value());
  EXPECT_FALSE(fence.Welcome("a", 1, /*holds=*/true).has_value());
  EXPECT_TRUE(fence.Welcome("", 0, /*holds=*/true).has_value());
}

}  // namespace
}  // namespace takt::session
