// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/saving.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::job {
namespace {

using Kind = SavingState::Kind;

class SavingTest : public ::testing::Test {
 protected:
  SavingTest() {
    for (int rank = 0; rank < 2; ++rank) {
      ranks_.push_back({.bound = {.rank = Rank(rank), .worker = absl::StrCat("w", rank)},
                        .phase = RankPhase::kRunning});
    }
  }
  bool Add(int rank, std::int64_t step, const std::string& error = "") {
    return AddReport(saving_, {.rank = Rank(rank),
                               .step = StepId(step),
                               .files = {{.name = absl::StrCat("f", rank)}},
                               .write_seconds = 1.0 + rank,
                               .error = error});
  }
  SavingState Judge(bool gave_up = false) { return JudgeOldest(saving_, ranks_, gave_up); }

  store::Saving saving_;
  std::vector<RankRun> ranks_;
};

TEST_F(SavingTest, IsCompleteWhenAllRanksHaveTold) {
  EXPECT_EQ(Judge().kind, Kind::kNone);
  EXPECT_TRUE(Add(1, 10));
  EXPECT_EQ(Judge().kind, Kind::kWriting);
  EXPECT_EQ(Judge().reason, "rank 0 (w0) to write the checkpoint of step 10");
  EXPECT_TRUE(Add(0, 10));
  EXPECT_EQ(Judge().kind, Kind::kComplete);
  const store::OpenCheckpoint settled = SettleOldest(saving_);
  EXPECT_EQ(settled.files.size(), 2u);
  EXPECT_EQ(settled.write_seconds, 2.0);
  EXPECT_EQ(saving_.settled, StepId(10));
  EXPECT_EQ(Judge().kind, Kind::kNone);
}

TEST_F(SavingTest, IgnoresWhatWasTold) {
  Add(0, 10);
  EXPECT_FALSE(Add(0, 10));
  Add(1, 10);
  SettleOldest(saving_);
  EXPECT_FALSE(Add(0, 10));
  EXPECT_FALSE(Add(0, 9));
}

TEST_F(SavingTest, AnErrorFailsItOnceNobodyWritesAnyMore) {
  Add(0, 10, "disk full");
  EXPECT_EQ(Judge().kind, Kind::kWriting);
  Add(1, 10, "disk full, too");
  EXPECT_EQ(Judge().kind, Kind::kFailed);
  EXPECT_EQ(Judge().reason, "rank 0: disk full");
}

TEST_F(SavingTest, ARankThatEndedWithoutItsPartFailsIt) {
  Add(0, 10);
  ranks_[1].phase = RankPhase::kAborted;
  EXPECT_EQ(Judge().kind, Kind::kFailed);
  EXPECT_EQ(Judge().reason, "rank 1 (w1) ended before its part was written");
  ranks_[1] = {.bound = ranks_[1].bound, .phase = RankPhase::kRunning};
  ranks_[1].lost = "its stream ended";
  EXPECT_EQ(Judge().kind, Kind::kFailed);
}

TEST_F(SavingTest, SilentRanksThatGaveUpFailIt) {
  Add(0, 10);
  EXPECT_EQ(Judge(/*gave_up=*/true).kind, Kind::kFailed);
}

TEST_F(SavingTest, ARankThatEndedAfterItsPartDoesNotHarm) {
  Add(0, 10);
  Add(1, 10);
  ranks_[1].lost = "its stream ended";
  EXPECT_EQ(Judge(/*gave_up=*/true).kind, Kind::kComplete);
}

TEST_F(SavingTest, TheOldestComesFirst) {
  Add(0, 20);
  Add(0, 10);
  Add(1, 20);
  EXPECT_EQ(Judge().reason, "rank 1 (w1) to write the checkpoint of step 10");
  Add(1, 10);
  EXPECT_EQ(SettleOldest(saving_).step, StepId(10));
  EXPECT_EQ(SettleOldest(saving_).step, StepId(20));
}

}  // namespace
}  // namespace takt::job
