// SPDX-License-Identifier: Apache-2.0
// Tests pause, resume, drain and leave.
#include "coordinator/job/cluster_harness.h"
#include "gmock/gmock.h"

namespace takt::job {
namespace {

using membership::Hold;
using membership::WorkerState;
using store::JobState;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class HaltTest : public ClusterTest {
 protected:
  // Starts a job of two ranks that trains to step 5 and is asked to pause.
  control::JobKey PausingJob() {
    AttachWorkers(2);
    const control::JobKey key = RunJob(SavingSpec("j", 2));
    TrainTo(key, 5);
    EXPECT_EQ(Pause("j")->state, JobState::kRunning);
    return key;
  }
};

TEST_F(HaltTest, APausedJobEndsAtAStepBoundaryAndLetsItsWorkersGo) {
  const control::JobKey key = PausingJob();
  for (const char* worker : {"w0", "w1"}) {
    ASSERT_NE(Session(worker).Last<control::Halt>(), nullptr);
    EXPECT_EQ(Session(worker).Last<control::Halt>()->key, key);
  }
  EXPECT_EQ(Job("j").reason,
            "paused by request; waiting for rank 0 (w0), rank 1 (w1) to end at a step boundary");
  TrainTo(key, 7);
  ReportPart("w0", key, 0, 7);
  Say("w0", key, 0, control::Phase::kHalted);
  ReportPart("w1", key, 1, 7);
  Say("w1", key, 1, control::Phase::kHalted);
  EXPECT_EQ(Job("j").reason,
            "paused by request; waiting for the checkpoint of step 7 to become visible");
  EXPECT_EQ(StateOf("w1"), WorkerState::kBusy);
  Answer("w0", key, 7);
  EXPECT_EQ(Job("j").state, JobState::kPaused);
  EXPECT_EQ(Job("j").reason, "paused by request; goes on from the checkpoint of step 7");
  EXPECT_FALSE(Job("j").halt.has_value());
  EXPECT_TRUE(Job("j").ranks.empty());
  EXPECT_EQ(StateOf("w0"), WorkerState::kIdle);
  EXPECT_EQ(StateOf("w1"), WorkerState::kIdle);
  EXPECT_NE(Session("w1").Last<control::Acknowledge>(), nullptr);
}

TEST_F(HaltTest, AResumedJobGoesOnUnderANewGeneration) {
  const control::JobKey key = PausingJob();
  SaveAt(key, 5);
  SayAll(key, control::Phase::kHalted);
  ASSERT_EQ(Job("j").state, JobState::kPaused);
  EXPECT_EQ(Resume("j")->state, JobState::kQueued);
  EXPECT_EQ(Job("j").state, JobState::kStarting);
  const control::Prepare* prepare = Session("w0").Last<control::Prepare>();
  EXPECT_EQ(prepare->assignment()->key.generation, Generation(2));
  EXPECT_EQ(prepare->assignment()->resume, "auto");
  AdmitAll("j", 5);
  EXPECT_EQ(Job("j").resumed_step, StepId(5));
  EXPECT_EQ(Job("j").transitions.back().reason, "all 2 ranks admitted; going on after step 5");
}

TEST_F(HaltTest, AWaitingOrPlanningJobIsPausedAtOnce) {
  ASSERT_TRUE(Submit(SavingSpec("j", 1)).ok());
  EXPECT_EQ(Pause("j")->state, JobState::kPaused);
  EXPECT_EQ(Pause("j")->state, JobState::kPaused);
  hold_plans_ = true;
  AttachWorkers(1);
  ASSERT_TRUE(Resume("j").ok());
  ASSERT_EQ(Job("j").state, JobState::kPlanning);
  EXPECT_EQ(Pause("j")->state, JobState::kPaused);
  EXPECT_EQ(StateOf("w0"), WorkerState::kIdle);
  hold_plans_ = false;
  Settle();  // the plan comes too late
  EXPECT_EQ(Job("j").state, JobState::kPaused);
}

TEST_F(HaltTest, AStartingJobIsPausedWithoutACheckpoint) {
  AttachWorkers(1);
  ASSERT_TRUE(Submit(SavingSpec("j", 1)).ok());
  const control::JobKey key{"j", Generation(1)};
  ASSERT_TRUE(Pause("j").ok());
  ASSERT_NE(Session("w0").Last<control::Abort>(), nullptr);
  EXPECT_EQ(Session("w0").Last<control::Halt>(), nullptr);
  Say("w0", key, 0, control::Phase::kAborted);
  EXPECT_EQ(Job("j").state, JobState::kPaused);
  EXPECT_EQ(Job("j").reason, "paused by request; has no checkpoint of its own yet");
}

TEST_F(HaltTest, APauseOfAStartingJobSurvivesARestart) {
  AttachWorkers(1);
  ASSERT_TRUE(Submit(SavingSpec("j", 1)).ok());
  ASSERT_TRUE(Pause("j").ok());
  Restart();
  EXPECT_EQ(Job("j").state, JobState::kPaused);
  Restart();
  EXPECT_EQ(Job("j").state, JobState::kPaused);
}

TEST_F(HaltTest, WhatCannotBePausedOrResumedIsRefused) {
  AttachWorkers(1);
  const control::JobKey key = RunJob("j", 1);
  const auto status = Pause("j").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.ToString(), HasSubstr("job j has no checkpoint section"));
  EXPECT_THAT(
      Resume("j").status().ToString(),
      HasSubstr("job j is RUNNING, not PAUSED, so it cannot be resumed; it goes on by itself"));
  Say("w0", key, 0, control::Phase::kFailed, "boom");
  EXPECT_EQ(Pause("j").status().message(),
            "job j is FAILED: only a job that has not ended can be paused; to train on, run takt "
            "delete j and submit its file again");
  EXPECT_EQ(Resume("j").status().message(),
            "job j is FAILED, not PAUSED, so it cannot be resumed; to train on, run takt delete j "
            "and submit its file again");
  EXPECT_EQ(Pause("nobody").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(HaltTest, RequestsSentAgainAnswerAsBefore) {
  ASSERT_TRUE(Submit(SavingSpec("j", 1)).ok());
  ASSERT_TRUE(Pause("j", "p").ok());
  ASSERT_TRUE(Resume("j", "r").ok());
  EXPECT_EQ(Pause("j", "p")->state, JobState::kPaused);
  EXPECT_EQ(Job("j").state, JobState::kQueued);
  EXPECT_EQ(Resume("j", "r")->state, JobState::kQueued);
}

TEST_F(HaltTest, APauseSurvivesARestart) {
  const control::JobKey key = PausingJob();
  Restart();
  Attach("w0", "a", Hold{{"j", key.generation}, Rank(0)});
  ASSERT_NE(Session("w0").Last<control::Halt>(), nullptr);  // it may not have heard it
  Attach("w1", "a", Hold{{"j", key.generation}, Rank(1)});
  SaveAt(key, 5);
  SayAll(key, control::Phase::kHalted);
  EXPECT_EQ(Job("j").state, JobState::kPaused);
}

TEST_F(HaltTest, ARestartBetweenTheHaltAndItsCommitPausesTheJob) {
  const control::JobKey key = PausingJob();
  ReportPart("w0", key, 0, 5);
  ReportPart("w1", key, 1, 5);
  SayAll(key, control::Phase::kHalted);
  Restart();
  Attach("w0", "a", Hold{{"j", key.generation}, Rank(0)});
  Attach("w1", "a", Hold{{"j", key.generation}, Rank(1)});
  Say("w0", key, 0, control::Phase::kHalted);
  Say("w1", key, 1, control::Phase::kHalted);
  ASSERT_NE(Session("w0").Last<control::CommitCheckpoint>(), nullptr);
  Answer("w0", key, 5);
  EXPECT_EQ(Job("j").state, JobState::kPaused);
}

TEST_F(HaltTest, ARankThatDidNotHearTheStartHearsOfTheHaltAfterIt) {
  const control::JobKey key = PausingJob();
  Session("w1").commands.clear();
  Say("w1", key, 1, control::Phase::kAdmitted);
  ASSERT_EQ(Session("w1").commands.size(), 2u);
  EXPECT_TRUE(std::holds_alternative<control::Start>(Session("w1").commands[0]));
  EXPECT_TRUE(std::holds_alternative<control::Halt>(Session("w1").commands[1]));
}

TEST_F(HaltTest, AJobThatIsDoneAtTheBoundarySucceeds) {
  AttachWorkers(1);
  const control::JobKey key = RunJob(SavingSpec("j", 1, 5));
  TrainTo(key, 4);
  ASSERT_TRUE(Pause("j").ok());
  TrainTo(key, 5);
  SaveAt(key, 5);
  Say("w0", key, 0, control::Phase::kFinished);
  EXPECT_EQ(Job("j").state, JobState::kSucceeded);
}

TEST_F(HaltTest, APauseWhoseCheckpointFailsSaysWhereTheJobGoesOn) {
  AttachWorkers(1);
  const control::JobKey key = RunJob(SavingSpec("j", 1));
  TrainTo(key, 10);
  SaveAt(key, 10);
  TrainTo(key, 12);
  ASSERT_TRUE(Pause("j").ok());
  ReportPart("w0", key, 0, 12, "disk full");
  Say("w0", key, 0, control::Phase::kHalted);
  EXPECT_EQ(Job("j").state, JobState::kPaused);
  EXPECT_EQ(Job("j").reason, "paused by request; goes on from the checkpoint of step 10");
  EXPECT_THAT(Job("j").notices, ElementsAre(HasSubstr("disk full")));
}

TEST_F(HaltTest, ARankThatDiesWhileHaltingLeavesTheJobPaused) {
  const control::JobKey key = PausingJob();
  ReportPart("w0", key, 0, 6);
  Say("w0", key, 0, control::Phase::kHalted);
  Lose("w1");
  EXPECT_EQ(Job("j").state, JobState::kPaused);
  EXPECT_THAT(Job("j").reason, HasSubstr("paused by request; worker w1 (rank 1) lost"));
  EXPECT_THAT(Job("j").notices,
              ElementsAre("the checkpoint of step 6 failed: rank 1 (w1) ended before its part was "
                          "written"));
}

TEST_F(HaltTest, ARecoveringJobIsPausedOnceItsRanksHaveLetGo) {
  AttachWorkers(2);
  const control::JobKey key = RunJob(SavingSpec("j", 2));
  Lose("w1");
  ASSERT_EQ(Job("j").state, JobState::kRecovering);
  ASSERT_TRUE(Pause("j").ok());
  EXPECT_EQ(Job("j").state, JobState::kRecovering);
  Say("w0", key, 0, control::Phase::kAborted);
  EXPECT_EQ(Job("j").state, JobState::kPaused);
}

TEST_F(HaltTest, AResumeWhileHaltingPutsTheJobBackInTheQueue) {
  const control::JobKey key = PausingJob();
  ASSERT_TRUE(Resume("j").ok());
  SaveAt(key, 5);
  SayAll(key, control::Phase::kHalted);
  EXPECT_EQ(Job("j").state, JobState::kStarting);
  EXPECT_EQ(Job("j").generation, Generation(2));
}

TEST_F(HaltTest, CancelWhileHaltingAndWhilePaused) {
  const control::JobKey key = PausingJob();
  ASSERT_TRUE(Cancel("j").ok());
  ASSERT_NE(Session("w0").Last<control::Abort>(), nullptr);
  SayAll(key, control::Phase::kAborted);
  EXPECT_EQ(Job("j").state, JobState::kCancelled);

  ASSERT_TRUE(Submit(SavingSpec("k", 3)).ok());
  ASSERT_TRUE(Pause("k").ok());
  EXPECT_THAT(Delete("k").ToString(), HasSubstr("job k is PAUSED; cancel it first"));
  EXPECT_EQ(Cancel("k")->state, JobState::kCancelled);
  EXPECT_TRUE(Delete("k").ok());
}

TEST_F(HaltTest, ADrainedWorkersJobMovesToOthers) {
  AttachWorkers(3);
  const control::JobKey key = RunJob(SavingSpec("j", 2));
  TrainTo(key, 5);
  ASSERT_TRUE(SetDrained("w1", true).ok());
  ASSERT_NE(Session("w0").Last<control::Halt>(), nullptr);
  EXPECT_EQ(Session("w0").Last<control::Halt>()->reason, "worker w1 is drained");
  SaveAt(key, 5);
  SayAll(key, control::Phase::kHalted);
  EXPECT_EQ(Job("j").state, JobState::kStarting);
  EXPECT_EQ(Job("j").ranks[0].worker, "w0");
  EXPECT_EQ(Job("j").ranks[1].worker, "w2");
  EXPECT_EQ(StateOf("w1"), WorkerState::kIdle);
}

TEST_F(HaltTest, ADrainedWorkersJobWaitsForAnother) {
  AttachWorkers(2);
  const control::JobKey key = RunJob(SavingSpec("j", 2));
  ASSERT_TRUE(SetDrained("w1", true).ok());
  SayAll(key, control::Phase::kHalted);
  EXPECT_EQ(Job("j").state, JobState::kQueued);
  EXPECT_EQ(Job("j").reason, "needs 2 workers, 1 idle: 1 drained");
}

TEST_F(HaltTest, AWorkerDrainedWhileItsJobIsPlannedIsNotGivenARank) {
  AttachWorkers(1);
  hold_plans_ = true;
  ASSERT_TRUE(Submit(Spec("j", 1)).ok());
  ASSERT_TRUE(SetDrained("w0", true).ok());
  hold_plans_ = false;
  Settle();
  EXPECT_EQ(Job("j").state, JobState::kQueued);
  EXPECT_EQ(Job("j").reason, "needs 1 worker, 0 idle: 1 drained");
}

TEST_F(HaltTest, ALeavingWorkersJobMovesToOthers) {
  AttachWorkers(3);
  const control::JobKey key = RunJob(SavingSpec("j", 2));
  Leave("w0");
  ASSERT_NE(Session("w1").Last<control::Halt>(), nullptr);
  EXPECT_EQ(Session("w1").Last<control::Halt>()->reason, "worker w0 leaves: SIGTERM");
  TrainTo(key, 5);
  SaveAt(key, 5);
  SayAll(key, control::Phase::kHalted);
  EXPECT_NE(Session("w0").Last<control::Acknowledge>(), nullptr);
  EXPECT_EQ(Job("j").ranks[0].worker, "w1");
  ASSERT_TRUE(Submit(Spec("k", 1)).ok());
  EXPECT_EQ(Job("k").reason,
            "needs 1 worker, 0 idle: 2 held by job j, 1 leaving; 1 is reserved for it in about 2 "
            "min");
  Attach("w0", "a");  // the same process on a new stream leaves still
  EXPECT_EQ(Job("k").state, JobState::kQueued);
  Detach("w0");
  Attach("w0", "b");
  EXPECT_EQ(Job("k").state, JobState::kStarting);
}

TEST_F(HaltTest, ALeavingWorkerEndsAJobWithoutCheckpoints) {
  AttachWorkers(2);
  const control::JobKey key = RunJob("j", 2, 100);
  Leave("w1");
  ASSERT_NE(Session("w1").Last<control::Abort>(), nullptr);
  SayAll(key, control::Phase::kAborted);
  EXPECT_EQ(Job("j").state, JobState::kFailed);
  EXPECT_THAT(Job("j").reason, HasSubstr("worker w1 leaves: SIGTERM; the job has no checkpoint"));
}

TEST_F(HaltTest, AWorkerThatLeavesBeforeItsJobHasTrainedCostsTheJobNothing) {
  AttachWorkers(3);
  ASSERT_TRUE(Submit(Spec("j", 2)).ok());
  ASSERT_EQ(Job("j").state, JobState::kStarting);
  const control::JobKey key{"j", Job("j").generation};
  Leave("w1");
  Say("w1", key, 1, control::Phase::kRefused, "FAILED_PRECONDITION: the worker is leaving");
  Say("w0", key, 0, control::Phase::kAborted);
  ASSERT_EQ(Job("j").state, JobState::kStarting);
  EXPECT_EQ(Job("j").ranks[1].worker, "w2");
  EXPECT_THAT(Job("j").faults, IsEmpty());
}

TEST_F(HaltTest, APauseOutlivesADrain) {
  const control::JobKey key = PausingJob();
  ASSERT_TRUE(SetDrained("w1", true).ok());
  Leave("w0");
  SayAll(key, control::Phase::kHalted);
  EXPECT_EQ(Job("j").state, JobState::kPaused);
}

}  // namespace
}  // namespace takt::job
