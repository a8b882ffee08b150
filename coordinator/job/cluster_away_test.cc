// SPDX-License-Identifier: Apache-2.0
// Tests workers of which nothing is heard while their jobs train on.
#include "coordinator/job/cluster_harness.h"
#include "gmock/gmock.h"

namespace takt::job {
namespace {

using membership::Hold;
using membership::WorkerState;
using store::JobState;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class AwayTest : public ClusterTest {
 protected:
  // Lets seconds pass. Rank 0 (w0) reports a further step with each heartbeat.
  void TrainUnheard(const control::JobKey& key, int seconds) {
    for (int i = 0; i < seconds; ++i) {
      Heartbeat("w0", key, 0, ++step_, "0F0");
      Advance(absl::Seconds(1));
    }
  }

 private:
  std::int64_t step_ = 0;
};

TEST_F(AwayTest, ACoordinatorThatIsCutOffForAMinuteHurtsNoJob) {
  AttachWorkers(4);
  const control::JobKey key = RunJob("j", 4, 3);
  TrainTo(key, 1);
  for (int second = 0; second < 60; ++second) Advance(absl::Seconds(1));
  EXPECT_EQ(Job("j").state, JobState::kRunning);
  EXPECT_EQ(Job("j").reason,
            "training; nothing is heard of rank 0 (w0), rank 1 (w1), rank 2 (w2), rank 3 (w3)");
  EXPECT_EQ(StateOf("w2"), WorkerState::kAway);
  // Two find their streams as they left them, and two had given theirs up.
  Heartbeat("w0", key, 0, 1, "0F0");
  Heartbeat("w1", key, 1, 1, "1F0");
  Attach("w2", "a", Hold{key, Rank(2)});
  Attach("w3", "a", Hold{key, Rank(3)});
  EXPECT_EQ(Job("j").reason, "training");
  TrainTo(key, 3);
  EXPECT_THAT(StoredSteps("j"), ElementsAre(1, 2, 3));
  SayAll(key, control::Phase::kFinished);
  EXPECT_EQ(Job("j").state, JobState::kSucceeded);
  for (const char* worker : {"w0", "w1", "w2", "w3"}) {
    EXPECT_EQ(Session(worker).Last<control::Abort>(), nullptr);
    EXPECT_EQ(StateOf(worker), WorkerState::kIdle);
  }
}

TEST_F(AwayTest, AWorkerThatOnlyTheCoordinatorDoesNotHearIsVouchedForByItsPeers) {
  AttachWorkers(3);
  const control::JobKey key = RunJob("j", 3, 100);
  for (int second = 0; second < 60; ++second) {
    Heartbeat("w2", key, 2, 1, "2F0");
    TrainUnheard(key, 1);
  }
  EXPECT_EQ(Job("j").state, JobState::kRunning);
  EXPECT_EQ(Job("j").reason, "training; nothing is heard of rank 1 (w1)");
  Attach("w1", "a", Hold{key, Rank(1)});
  EXPECT_EQ(Job("j").reason, "training");
  EXPECT_EQ(Session("w1").Last<control::Abort>(), nullptr);
}

TEST_F(AwayTest, PeersThatGetNoFurtherVouchForNobody) {
  AttachWorkers(3);
  const control::JobKey key = RunJob("j", 3, 100);
  for (int second = 0; second < 6; ++second) {
    Heartbeat("w0", key, 0, 1, "0B0");
    Heartbeat("w2", key, 2, 1, "2F0");
    Advance(absl::Seconds(1));
  }
  ASSERT_NE(Session("w0").Last<control::Abort>(), nullptr);
  EXPECT_THAT(Session("w0").Last<control::Abort>()->reason,
              HasSubstr("worker w1 (rank 1) lost: nothing heard from it for 5s"));
}

TEST_F(AwayTest, AResetConnectionLeavesTheJobTrainingAndTheWorkerItsRank) {
  AttachWorkers(2);
  const control::JobKey key = RunJob("j", 2, 1);
  Detach("w1");
  EXPECT_EQ(Job("j").reason, "training; nothing is heard of rank 1 (w1)");
  Advance(absl::Milliseconds(100));
  Attach("w1", "a", Hold{key, Rank(1)});
  EXPECT_EQ(Job("j").reason, "training");
  TrainTo(key, 1);
  SayAll(key, control::Phase::kFinished);
  EXPECT_EQ(Job("j").state, JobState::kSucceeded);
}

TEST_F(AwayTest, AResetConnectionDoesNotEndAJobThatLoads) {
  AttachWorkers(2);
  ASSERT_TRUE(Submit(Spec("j", 2)).ok());
  const control::JobKey key{"j", Generation(1)};
  Detach("w1");
  Advance(absl::Milliseconds(100));
  Attach("w1", "a", Hold{key, Rank(1)});
  Advance(absl::Seconds(3));
  EXPECT_EQ(AdmitAll("j").generation, Generation(1));
}

TEST_F(AwayTest, AWorkerThatIsAwayIsToldWhatItMissed) {
  AttachWorkers(2);
  const control::JobKey key = RunJob(SavingSpec("j", 2));
  Detach("w1");
  ASSERT_TRUE(Pause("j").ok());
  Attach("w1", "a", Hold{key, Rank(1)});
  ASSERT_NE(Session("w1").Last<control::Halt>(), nullptr);
  EXPECT_EQ(Session("w1").Last<control::Halt>()->reason, "paused by request");
}

// Two witnesses: the coordinator lost its stream, and a peer lost its data connection.
TEST_F(AwayTest, APeerThatReportsABrokenConnectionEndsTheWaitForAWorkerThatIsAway) {
  AttachWorkers(3);
  const control::JobKey key = RunJob(SavingSpec("j", 2));
  Detach("w1");
  Say("w0", key, 0, control::Phase::kFailed, "UNAVAILABLE: rank 1 left");
  EXPECT_EQ(Job("j").state, JobState::kStarting);
  EXPECT_EQ(Job("j").generation, Generation(2));
  EXPECT_EQ(Job("j").ranks[1].worker, "w2");
  EXPECT_THAT(Job("j").transitions.at(5).reason,
              HasSubstr("worker w1 (rank 1) lost: its stream ended"));
  // It was alive after all. It is told that this generation is over.
  Attach("w1", "a", Hold{key, Rank(1)});
  ASSERT_NE(Session("w1").Last<control::Abort>(), nullptr);
  Say("w1", key, 1, control::Phase::kAborted);
  EXPECT_EQ(StateOf("w1"), WorkerState::kIdle);
}

TEST_F(AwayTest, ACancelledJobDoesNotWaitForAWorkerThatIsAway) {
  AttachWorkers(2);
  const control::JobKey key = RunJob("j", 2, 100);
  Detach("w1");
  ASSERT_TRUE(Cancel("j").ok());
  Say("w0", key, 0, control::Phase::kAborted);
  EXPECT_EQ(Job("j").state, JobState::kCancelled);
  EXPECT_EQ(StateOf("w1"), WorkerState::kAway);
  Attach("w1", "a", Hold{key, Rank(1)});
  ASSERT_NE(Session("w1").Last<control::Abort>(), nullptr);
}

TEST_F(AwayTest, WorkersThatAreHeardAgainBeforeTheRunEndsAreFree) {
  AttachWorkers(3);
  const control::JobKey key = RunJob(SavingSpec("j", 3));
  WriteAt(key, 10);
  Say("w0", key, 0, control::Phase::kFailed, "INTERNAL: boom");
  Say("w1", key, 1, control::Phase::kAborted);
  Say("w2", key, 2, control::Phase::kAborted);
  ASSERT_EQ(Job("j").state, JobState::kRecovering);  // its checkpoint is not visible yet
  for (int i = 0; i < 8; ++i) Advance(absl::Seconds(1));
  EXPECT_EQ(StateOf("w1"), WorkerState::kAway);
  AdvanceHearing({"w0", "w1", "w2"}, absl::Seconds(1));
  Answer("w0", key, 10);
  EXPECT_EQ(Job("j").state, JobState::kStarting);
}

TEST_F(AwayTest, AWorkerThatIsAwayGetsNoJobAndMakesNoCheckpointVisible) {
  AttachWorkers(2);
  const control::JobKey key = RunJob(SavingSpec("j", 1));
  ASSERT_EQ(Job("j").ranks[0].worker, "w0");
  Detach("w1");
  ASSERT_TRUE(Submit(Spec("k", 1)).ok());
  EXPECT_EQ(Job("k").state, JobState::kQueued);
  Detach("w0");
  TrainTo(key, 10);
  ReportPart("w0", key, 0, 10);
  EXPECT_EQ(Session("w0").Last<control::CommitCheckpoint>(), nullptr);
  EXPECT_EQ(Session("w1").Last<control::CommitCheckpoint>(), nullptr);
  Attach("w0", "a", Hold{key, Rank(0)});
  EXPECT_NE(Session("w0").Last<control::CommitCheckpoint>(), nullptr);
}

TEST_F(AwayTest, AWorkerThatDoesNotComeBackAfterARestartIsVouchedForToo) {
  AttachWorkers(2);
  const control::JobKey key = RunJob("j", 2, 1000);
  Restart();
  Attach("w0", "a", Hold{key, Rank(0)});
  TrainUnheard(key, 60);
  EXPECT_EQ(Job("j").reason, "training; nothing is heard of rank 1 (w1)");
  Attach("w1", "a", Hold{key, Rank(1)});
  EXPECT_EQ(Job("j").reason, "training");
}

}  // namespace
}  // namespace takt::job
