// SPDX-License-Identifier: Apache-2.0
// Tests what a coordinator that was killed finds and does when it is started again.
#include "coordinator/job/cluster_harness.h"
#include "gmock/gmock.h"

namespace takt::job {
namespace {

using membership::Hold;
using membership::WorkerState;
using store::JobState;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(ClusterTest, QueuedJobsAreStillQueuedAndStartLater) {
  ASSERT_TRUE(Submit(Spec("j", 1)).ok());
  Restart();
  EXPECT_EQ(Job("j").state, JobState::kQueued);
  AttachWorkers(1);
  EXPECT_EQ(Job("j").state, JobState::kStarting);
}

TEST_F(ClusterTest, ARunningJobIsPickedUpAgainInItsGeneration) {
  AttachWorkers(2);
  const control::JobKey key = RunJob("j", 2, 3);
  Report("w0", key, 0, 1);
  Report("w1", key, 1, 1);
  Restart();
  EXPECT_EQ(Job("j").state, JobState::kRunning);
  EXPECT_EQ(Job("j").reason, "training; nothing is heard of rank 0 (w0), rank 1 (w1)");
  EXPECT_EQ(StateOf("w0"), WorkerState::kAway);
  Attach("w1", "a", Hold{{"j", key.generation}, Rank(1)});
  Attach("w0", "a", Hold{{"j", key.generation}, Rank(0)});
  EXPECT_EQ(Job("j").reason, "training");
  EXPECT_EQ(Session("w0").Last<control::Abort>(), nullptr);
  EXPECT_EQ(StateOf("w0"), WorkerState::kBusy);

  // Step 1 comes again because its acknowledgement may have been lost.
  for (const int step : {1, 2, 3}) {
    Report("w0", key, 0, step);
    Report("w1", key, 1, step);
  }
  EXPECT_THAT(StoredSteps("j"), ElementsAre(1, 2, 3));
  EXPECT_EQ(Session("w1").acknowledged, 4);
  Say("w0", key, 0, control::Phase::kFinished);
  Say("w1", key, 1, control::Phase::kFinished);
  EXPECT_EQ(Job("j").state, JobState::kSucceeded);
}

TEST_F(ClusterTest, AJobThatFinishedMeanwhileSucceedsFromTheEndsThatWorkersKept) {
  AttachWorkers(1);
  const control::JobKey key = RunJob("j", 1, 1);
  Restart();
  Attach("w0", "a", Hold{{"j", key.generation}, Rank(0)});
  Report("w0", key, 0, 1);
  Say("w0", key, 0, control::Phase::kFinished);
  EXPECT_EQ(Job("j").state, JobState::kSucceeded);
  EXPECT_EQ(StateOf("w0"), WorkerState::kIdle);
}

TEST_F(ClusterTest, WorkersThatDoNotReturnFailTheJob) {
  AttachWorkers(2);
  const control::JobKey key = RunJob("j", 2, 100);
  Restart();
  Attach("w0", "a", Hold{{"j", key.generation}, Rank(0)});
  for (int i = 0; i < 15; ++i) {
    EXPECT_EQ(Job("j").state, JobState::kRunning);
    Heartbeat("w0", key, 0, 1, "0F0");
    Advance(absl::Seconds(1));
  }
  ASSERT_NE(Session("w0").Last<control::Abort>(), nullptr);
  Say("w0", key, 0, control::Phase::kAborted, "", "RECV 0B0 from pp rank 1");
  EXPECT_EQ(Job("j").state, JobState::kFailed);
  EXPECT_THAT(Job("j").reason, HasSubstr("worker w1 (rank 1) lost: not heard of since the "
                                         "coordinator was started"));
  EXPECT_THAT(Job("j").reason, HasSubstr("rank 0 (w0) was waiting for RECV 0B0 from pp rank 1"));
  EXPECT_EQ(StateOf("w0"), WorkerState::kIdle);
}

TEST_F(ClusterTest, AWorkerThatReturnsWithoutItsRankFailsTheJob) {
  AttachWorkers(2);
  const control::JobKey key = RunJob("j", 2, 100);
  Restart();
  Attach("w0", "a", Hold{{"j", key.generation}, Rank(0)});
  Attach("w1", "a");
  EXPECT_EQ(StateOf("w1"), WorkerState::kIdle);
  Say("w0", key, 0, control::Phase::kAborted);
  EXPECT_EQ(Job("j").state, JobState::kFailed);
  EXPECT_THAT(Job("j").reason, HasSubstr("worker w1 (rank 1) lost: it came back without its rank"));
}

TEST_F(ClusterTest, AWorkerThatReturnsAsANewProcessFailsTheJob) {
  AttachWorkers(2);
  const control::JobKey key = RunJob("j", 2, 100);
  Restart();
  Attach("w0", "a", Hold{{"j", key.generation}, Rank(0)});
  Attach("w1", "b");
  EXPECT_EQ(StateOf("w1"), WorkerState::kIdle);
  Say("w0", key, 0, control::Phase::kAborted);
  EXPECT_EQ(Job("j").state, JobState::kFailed);
  EXPECT_THAT(Job("j").reason, HasSubstr("worker w1 (rank 1) lost: it came back as a new process"));
}

TEST_F(ClusterTest, AStartingJobIsQueuedAgainUnderANewGenerationAndItsOldRanksAborted) {
  AttachWorkers(2);
  ASSERT_TRUE(Submit(Spec("j", 2)).ok());
  EXPECT_EQ(Job("j").state, JobState::kStarting);
  Restart();
  EXPECT_EQ(Job("j").state, JobState::kQueued);
  EXPECT_TRUE(Job("j").ranks.empty());
  const control::JobKey old{"j", Generation(1)};
  for (const int rank : {0, 1}) {
    const std::string worker = rank == 0 ? "w0" : "w1";
    Attach(worker, "a", Hold{{"j", old.generation}, Rank(rank)});
    ASSERT_NE(Session(worker).Last<control::Abort>(), nullptr);
    EXPECT_EQ(StateOf(worker), WorkerState::kBusy);
  }
  EXPECT_EQ(Job("j").state, JobState::kQueued);
  Say("w0", old, 0, control::Phase::kAborted);
  Say("w1", old, 1, control::Phase::kAborted);
  EXPECT_EQ(Job("j").state, JobState::kStarting);
  EXPECT_EQ(Job("j").generation, Generation(2));
}

TEST_F(ClusterTest, WhatAPlanChoseForAutoOutlivesTheCoordinator) {
  AttachWorkers(4);
  ASSERT_TRUE(Submit(OpenSpec("j")).ok());
  ASSERT_EQ(Job("j").state, JobState::kStarting);
  Restart();
  ASSERT_EQ(Job("j").state, JobState::kQueued);
  hold_plans_ = true;
  Attach("w0", "b"), Attach("w1", "b");
  ASSERT_EQ(plans_.size(), 1u);
  EXPECT_FALSE(plans_[0].spec.LeavesBitsOpen());
  EXPECT_EQ(plans_[0].spec.parallelism.data, 2);
  EXPECT_EQ(plans_[0].spec.microbatch, 4);
}

TEST_F(ClusterTest, APlanThatEndsTheCoordinatorThriceFailsItsJobAlone) {
  hold_plans_ = true;
  AttachWorkers(2);
  ASSERT_TRUE(Submit(Spec("bad", 1)).ok());
  Advance(absl::Seconds(1));
  ASSERT_TRUE(Submit(Spec("good", 1)).ok());
  for (int life = 1; life <= 3; ++life) {
    ASSERT_EQ(Job("bad").state, JobState::kPlanning) << life;
    Restart();
    // After the last one nobody asks for workers, so that the queue stays as it was restored.
    if (life == 3) break;
    // The jobs of others are served meanwhile.
    hold_plans_ = false;
    AttachWorkers(2);
    hold_plans_ = true;
    EXPECT_EQ(Job("good").state, JobState::kStarting) << life;
    EXPECT_THAT(Job("bad").reason, HasSubstr("makes it again at"));
    AdvanceHearing({"w0", "w1"}, life * absl::Seconds(29));
    EXPECT_EQ(Job("bad").state, JobState::kQueued) << life;
    AdvanceHearing({"w0", "w1"}, life * absl::Seconds(1));
  }
  EXPECT_EQ(Job("bad").state, JobState::kFailed);
  EXPECT_THAT(Job("bad").reason, HasSubstr("ended 3 times"));
  EXPECT_EQ(Job("good").state, JobState::kQueued);
}

TEST_F(ClusterTest, APlanThatWasMadeBeginsTheCountAnew) {
  hold_plans_ = true;
  for (int life = 1; life <= 4; ++life) {
    AttachWorkers(1);
    if (life == 1) {
      ASSERT_TRUE(Submit(Spec("j", 1)).ok());
    }
    AdvanceHearing({"w0"}, absl::Minutes(1));
    ASSERT_EQ(Job("j").state, JobState::kPlanning) << life;
    if (life == 2) {
      hold_plans_ = false;
      Settle();
      ASSERT_EQ(Job("j").state, JobState::kStarting);
      hold_plans_ = true;
    }
    Restart();
  }
  EXPECT_EQ(Job("j").state, JobState::kQueued);
}

TEST_F(ClusterTest, AJobThatWasNeverPlannedStaysOpen) {
  config::JobSpec spec = OpenSpec("j");
  spec.microbatch_auto = false;
  ASSERT_TRUE(Submit(spec).ok());
  Restart();
  hold_plans_ = true;
  Attach("w0");
  ASSERT_EQ(plans_.size(), 1u);
  EXPECT_TRUE(plans_[0].spec.parallelism.data_auto);
}

TEST_F(ClusterTest, AStallOfTheCoordinatorIsNotTheSilenceOfWorkers) {
  AttachWorkers(2);
  const control::JobKey key = RunJob("j", 2, 100);
  clock_.Advance(absl::Seconds(30));
  cluster_->ResumeAfterStall(absl::Seconds(30), Moment::Of(clock_));
  Settle();
  EXPECT_EQ(Job("j").reason, "training");
  Detach("w1");
  EXPECT_EQ(Job("j").reason, "training; nothing is heard of rank 1 (w1)");
  Attach("w1", "a", Hold{{"j", key.generation}, Rank(1)});
  EXPECT_EQ(Job("j").reason, "training");
  EXPECT_EQ(Session("w1").Last<control::Abort>(), nullptr);
}

TEST_F(ClusterTest, WorkersThatDoNotReturnAfterAStallFailTheJob) {
  AttachWorkers(2);
  const control::JobKey key = RunJob("j", 2, 100);
  clock_.Advance(absl::Seconds(30));
  cluster_->ResumeAfterStall(absl::Seconds(30), Moment::Of(clock_));
  Detach("w1");
  for (int i = 0; i < 15; ++i) {
    EXPECT_EQ(Session("w0").Last<control::Abort>(), nullptr);
    Heartbeat("w0", key, 0, 1, "0F0");
    Advance(absl::Seconds(1));
  }
  ASSERT_NE(Session("w0").Last<control::Abort>(), nullptr);
  EXPECT_THAT(Session("w0").Last<control::Abort>()->reason, HasSubstr("worker w1 (rank 1) lost"));
}

TEST_F(ClusterTest, AStreamThatEndsAfterAStallTooShortForThatIsADeath) {
  AttachWorkers(2);
  RunJob("j", 2, 100);
  clock_.Advance(absl::Seconds(3));
  cluster_->ResumeAfterStall(absl::Seconds(3), Moment::Of(clock_));
  Lose("w1");
  ASSERT_NE(Session("w0").Last<control::Abort>(), nullptr);
  EXPECT_THAT(Session("w0").Last<control::Abort>()->reason, HasSubstr("worker w1 (rank 1) lost"));
}

TEST_F(ClusterTest, RendezvousOfARunningJobIsOpenAgain) {
  AttachWorkers(1);
  const control::JobKey key = RunJob("j", 1);
  Restart();
  EXPECT_TRUE(rendezvous_->Set("j", key.generation, "k", "v").ok());
}

}  // namespace
}  // namespace takt::job
