// SPDX-License-Identifier: Apache-2.0
#include "worker/train/emulated_meetings.h"

#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/inproc_hub.h"
#include "worker/transport/channel_collective.h"

namespace takt::train {
namespace {

using program::PartKind;

// Runs one thread for each rank of a group.
void ForEachRank(int num_ranks, const std::function<void(transport::Collective&)>& run) {
  testing::InprocHub hub;
  std::vector<Rank> ranks;
  for (int rank = 0; rank < num_ranks; ++rank) ranks.push_back(Rank(rank));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto transport = hub.Connect({.rank = Rank(rank), .num_ranks = num_ranks});
      const auto group = transport::CreateCollective(
          transport.get(), {.name = "tensor", .ranks = ranks, .index = rank, .generation = 1});
      ASSERT_TRUE(group.ok()) << group.status();
      run(**group);
    });
  }
}

TEST(EmulatedMeetings, BringEveryRankWhatTheOthersHave) {
  for (const int num_ranks : {1, 2, 3, 4}) {
    for (const std::int64_t bytes : {0, 4, 12, 4000}) {
      ForEachRank(num_ranks, [&](transport::Collective& group) {
        EmulatedMeetings meetings(&group, bytes);
        for (std::int64_t serial = 0; serial < 10; ++serial) {
          EXPECT_EQ(meetings.Meet(StepId(1), PartKind::kGather, serial), absl::OkStatus());
          EXPECT_EQ(meetings.Meet(StepId(1), PartKind::kScatter, serial), absl::OkStatus());
        }
      });
    }
  }
}

TEST(EmulatedMeetings, SeeARankThatIsAtAnotherMeeting) {
  for (const PartKind kind : {PartKind::kGather, PartKind::kScatter}) {
    ForEachRank(2, [&](transport::Collective& group) {
      EmulatedMeetings meetings(&group, 64);
      EXPECT_EQ(meetings.Meet(StepId(1), kind, 5 + group.index()).code(),
                absl::StatusCode::kInternal);
    });
  }
}

TEST(EmulatedMeetings, OfLayersThatNobodySharesAreRefused) {
  EmulatedMeetings meetings(nullptr, 64);
  EXPECT_FALSE(meetings.Meet(StepId(1), PartKind::kGather, 1).ok());
}

}  // namespace
}  // namespace takt::train
