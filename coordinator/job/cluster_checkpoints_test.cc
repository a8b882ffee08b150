// SPDX-License-Identifier: Apache-2.0
// Tests how checkpoints become visible.
#include "absl/strings/str_cat.h"
#include "common/checkpoint/manifest.h"
#include "coordinator/job/cluster_harness.h"
#include "gmock/gmock.h"

namespace takt::job {
namespace {

using membership::Hold;
using store::JobState;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(ClusterTest, ACheckpointIsCommittedOnceAllRanksHaveWrittenIt) {
  AttachWorkers(2);
  const control::JobKey key = RunJob(SavingSpec("j", 2));
  TrainTo(key, 10);
  ReportPart("w1", key, 1, 10);
  EXPECT_EQ(Session("w0").Last<control::CommitCheckpoint>(), nullptr);
  ReportPart("w0", key, 0, 10);

  const control::CommitCheckpoint* commit = Session("w0").Last<control::CommitCheckpoint>();
  ASSERT_NE(commit, nullptr);
  EXPECT_EQ(commit->key, key);
  EXPECT_EQ(commit->directory, "/checkpoints/j");
  EXPECT_EQ(commit->keep, 3);
  const auto manifest = checkpoint::ParseManifest(commit->manifest, "manifest.json");
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->job, "j");
  EXPECT_EQ(manifest->generation, key.generation);
  EXPECT_EQ(manifest->step, StepId(10));
  EXPECT_EQ(manifest->windows, 80);  // 10 steps of 8
  EXPECT_THAT(manifest->files, SizeIs(2));
  EXPECT_THAT(manifest->job_spec, HasSubstr("activation_bytes"));
  EXPECT_FALSE(Job("j").checkpoint.has_value());

  Answer("w0", key, 10);
  EXPECT_EQ(Job("j").checkpoint->step, StepId(10));
  EXPECT_EQ(Job("j").state, JobState::kRunning);
}

TEST_F(ClusterTest, ReportsOfPartsAreAcknowledgedWithTheirSteps) {
  AttachWorkers(2);
  const control::JobKey key = RunJob(SavingSpec("j", 2));
  Report("w0", key, 0, 1);
  ReportPart("w0", key, 0, 1);  // rank 1 is behind: step 1 is not committed yet
  EXPECT_EQ(Session("w0").acknowledged, 0);
  Report("w1", key, 1, 1);
  EXPECT_EQ(Session("w0").acknowledged, 2);
}

TEST_F(ClusterTest, TheStepsOfACheckpointAreStoredBeforeItIsCommitted) {
  AttachWorkers(1);
  const control::JobKey key = RunJob(SavingSpec("j", 1));
  const FakeWorker& w0 = workers_.at("w0");
  const Moment now = Moment::Of(clock_);
  cluster_->Tick(now);  // a batch has just been stored
  cluster_->Report("w0", "a", {.key = key, .rank = Rank(0), .sequence = 1, .step = StepId(1)},
                   w0.session);
  cluster_->ReportCheckpoint(
      "w0", "a", {.key = key, .rank = Rank(0), .sequence = 2, .step = StepId(1)}, w0.session);
  Settle();
  ASSERT_NE(Session("w0").Last<control::CommitCheckpoint>(), nullptr);
  EXPECT_THAT(StoredSteps("j"), ElementsAre(1));
}

// After a restart one rank may tell its part before another one has told its steps again.
TEST_F(ClusterTest, ACompleteCheckpointWaitsForItsSteps) {
  AttachWorkers(2);
  const control::JobKey key = RunJob(SavingSpec("j", 2));
  TrainTo(key, 9);
  Report("w0", key, 0, 10);
  ReportPart("w0", key, 0, 10);
  ReportPart("w1", key, 1, 10);
  EXPECT_EQ(Session("w0").Last<control::CommitCheckpoint>(), nullptr);
  Report("w1", key, 1, 10);
  ASSERT_NE(Session("w0").Last<control::CommitCheckpoint>(), nullptr);
  EXPECT_EQ(Session("w0").Last<control::CommitCheckpoint>()->step, StepId(10));
}

TEST_F(ClusterTest, AJobThatStopsDoesNotWaitForStepsThatNobodyReports) {
  AttachWorkers(2);
  const control::JobKey key = RunJob(SavingSpec("j", 2));
  TrainTo(key, 9);
  ReportPart("w0", key, 0, 10);
  ReportPart("w1", key, 1, 10);
  Lose("w1");
  Say("w0", key, 0, control::Phase::kAborted);
  ASSERT_EQ(Job("j").state, JobState::kRecovering);
  AdvanceHearing({"w0"}, timeouts::kStopGrace);
  EXPECT_EQ(Job("j").state, JobState::kQueued);
  EXPECT_FALSE(Job("j").checkpoint.has_value());
}

TEST_F(ClusterTest, AJobSucceedsOnlyWhenItsLastCheckpointIsVisible) {
  AttachWorkers(2);
  const control::JobKey key = RunJob(SavingSpec("j", 2, 3));
  WriteAt(key, 3);
  SayAll(key, control::Phase::kFinished);
  EXPECT_EQ(Job("j").state, JobState::kRunning);
  EXPECT_EQ(Job("j").reason, "waiting for the checkpoint of step 3 to become visible");
  EXPECT_EQ(Session("w0").Last<control::Acknowledge>(), nullptr);
  Answer("w0", key, 3);
  EXPECT_EQ(Job("j").state, JobState::kSucceeded);
  EXPECT_EQ(Job("j").checkpoint->step, StepId(3));
  EXPECT_NE(Session("w1").Last<control::Acknowledge>(), nullptr);
}

TEST_F(ClusterTest, AFailedPartFailsTheCheckpointAndTrainingGoesOn) {
  AttachWorkers(2);
  const control::JobKey key = RunJob(SavingSpec("j", 2));
  TrainTo(key, 10);
  ReportPart("w0", key, 0, 10, "no space left on device");
  EXPECT_THAT(Job("j").notices, IsEmpty());  // rank 1 still writes
  ReportPart("w1", key, 1, 10);
  EXPECT_THAT(Job("j").notices,
              ElementsAre("the checkpoint of step 10 failed: rank 0: no space left on device"));
  EXPECT_EQ(Job("j").state, JobState::kRunning);
  EXPECT_FALSE(Job("j").checkpoint.has_value());
  ASSERT_NE(Session("w0").Last<control::CommitCheckpoint>(), nullptr);
  EXPECT_EQ(Session("w0").Last<control::CommitCheckpoint>()->manifest,
            "");  // remove what was written
  TrainTo(key, 20);
  SaveAt(key, 20);
}

TEST_F(ClusterTest, ACheckpointThatCannotBeCommittedIsAWarning) {
  AttachWorkers(1);
  const control::JobKey key = RunJob(SavingSpec("j", 1));
  TrainTo(key, 1);
  ReportPart("w0", key, 0, 1);
  Answer("w0", key, 1, "model-0 has 7 bytes, not 8");
  EXPECT_THAT(Job("j").notices,
              ElementsAre("the checkpoint of step 1 failed: model-0 has 7 bytes, not 8"));
  EXPECT_FALSE(Job("j").checkpoint.has_value());
  EXPECT_EQ(Job("j").reason, "training");
}

TEST_F(ClusterTest, CheckpointsBecomeVisibleInTheOrderOfTheirSteps) {
  AttachWorkers(2);
  const control::JobKey key = RunJob(SavingSpec("j", 2));
  TrainTo(key, 20);
  for (const int step : {10, 20}) ReportPart("w0", key, 0, step);
  ReportPart("w1", key, 1, 10);
  ReportPart("w1", key, 1, 20);
  EXPECT_EQ(Session("w0").Last<control::CommitCheckpoint>()->step, StepId(10));
  Answer("w0", key, 20);  // not asked for
  EXPECT_FALSE(Job("j").checkpoint.has_value());
  Answer("w0", key, 10);
  EXPECT_EQ(Session("w0").Last<control::CommitCheckpoint>()->step, StepId(20));
  Answer("w0", key, 20);
  EXPECT_EQ(Job("j").checkpoint->step, StepId(20));
}

TEST_F(ClusterTest, PartsToldTwiceCountOnce) {
  AttachWorkers(2);
  const control::JobKey key = RunJob(SavingSpec("j", 2));
  TrainTo(key, 10);
  ReportPart("w0", key, 0, 10);
  ReportPart("w0", key, 0, 10);
  EXPECT_EQ(Session("w0").Last<control::CommitCheckpoint>(), nullptr);
  ReportPart("w1", key, 1, 10);
  Answer("w0", key, 10);
  ReportPart("w1", key, 1, 10);  // its acknowledgement was lost
  Answer("w0", key, 10);
  EXPECT_TRUE(Job("j").saving.open.empty());
  EXPECT_EQ(Job("j").reason, "training");
  EXPECT_EQ(Session("w1").acknowledged, 12);
}

TEST_F(ClusterTest, PartsOfAnotherGenerationOrRankAreRefused) {
  AttachWorkers(2);
  const control::JobKey key = RunJob(SavingSpec("j", 2));
  ReportPart("w0", {"j", Generation(7)}, 0, 10);
  ReportPart("w1", key, 0, 10);
  EXPECT_TRUE(Job("j").saving.open.empty());
}

TEST_F(ClusterTest, ACommitIsAskedForAgainWhenItsWorkerComesBack) {
  AttachWorkers(2);
  const control::JobKey key = RunJob(SavingSpec("j", 2));
  WriteAt(key, 10);
  Attach("w0", "a", Hold{{"j", key.generation}, Rank(0)});  // on a new stream
  ASSERT_NE(Session("w0").Last<control::CommitCheckpoint>(), nullptr);
  Answer("w0", key, 10);
  EXPECT_EQ(Job("j").checkpoint->step, StepId(10));
}

TEST_F(ClusterTest, AnotherWorkerCommitsIfThatOfRankZeroIsGone) {
  AttachWorkers(2);
  const control::JobKey key = RunJob(SavingSpec("j", 2));
  WriteAt(key, 10);
  Detach("w0");
  EXPECT_EQ(Session("w1").Last<control::CommitCheckpoint>(), nullptr) << "it may come back";
  AdvanceHearing({"w1"}, timeouts::kRedial);
  ASSERT_NE(Session("w1").Last<control::CommitCheckpoint>(), nullptr);
  Say("w1", key, 1, control::Phase::kAborted);
  EXPECT_EQ(Job("j").state, JobState::kRecovering);
  EXPECT_THAT(Job("j").reason,
              HasSubstr("waiting for the checkpoint of step 10 to become visible"));
  Answer("w1", key, 10);
  EXPECT_EQ(Job("j").state, JobState::kQueued);
  EXPECT_EQ(Job("j").checkpoint->step, StepId(10));
}

TEST_F(ClusterTest, AfterARestartNoOtherWorkerIsAskedUntilTheFirstIsKnownToBeGone) {
  AttachWorkers(2);
  const control::JobKey key = RunJob(SavingSpec("j", 2));
  WriteAt(key, 10);
  ASSERT_NE(Session("w0").Last<control::CommitCheckpoint>(), nullptr);

  Restart();
  Attach("w1", "a", Hold{{"j", key.generation}, Rank(1)});
  EXPECT_EQ(Session("w1").Last<control::CommitCheckpoint>(), nullptr);
  Attach("w0", "a", Hold{{"j", key.generation}, Rank(0)});
  EXPECT_NE(Session("w0").Last<control::CommitCheckpoint>(), nullptr);
  EXPECT_EQ(Session("w1").Last<control::CommitCheckpoint>(), nullptr);

  Restart();
  Attach("w1", "a", Hold{{"j", key.generation}, Rank(1)});
  EXPECT_EQ(Session("w1").Last<control::CommitCheckpoint>(), nullptr);
  Attach("w0", "b");  // the process that was asked is gone
  EXPECT_EQ(Session("w0").Last<control::CommitCheckpoint>(), nullptr);
  ASSERT_NE(Session("w1").Last<control::CommitCheckpoint>(), nullptr);
  Answer("w1", key, 10);
  EXPECT_EQ(Job("j").checkpoint->step, StepId(10));
}

TEST_F(ClusterTest, AnotherWorkerCommitsIfTheOneThatWasAskedDoesNotComeBackAfterARestart) {
  AttachWorkers(2);
  const control::JobKey key = RunJob(SavingSpec("j", 2));
  WriteAt(key, 10);
  Restart();
  Attach("w1", "a", Hold{{"j", key.generation}, Rank(1)});
  for (int second = 0; second < 15; ++second) {
    EXPECT_EQ(Session("w1").Last<control::CommitCheckpoint>(), nullptr) << second;
    Heartbeat("w1", key, 1, 10, "1F0");
    Advance(absl::Seconds(1));
  }
  EXPECT_NE(Session("w1").Last<control::CommitCheckpoint>(), nullptr);
}

// The worker that was asked may still be at it, so no other one touches the files.
TEST_F(ClusterTest, OnlyTheWorkerThatWasAskedRemovesACheckpointThatFailed) {
  AttachWorkers(2);
  const control::JobKey key = RunJob(SavingSpec("j", 2));
  WriteAt(key, 10);
  for (int minute = 0; minute < 5; ++minute) {
    for (int second = 0; second < 60; second += 2) {
      for (const int rank : {0, 1}) Heartbeat(rank == 0 ? "w0" : "w1", key, rank, 10, "0F0");
      Advance(absl::Seconds(2));
    }
  }
  ASSERT_THAT(Job("j").notices, ElementsAre(HasSubstr("no worker made it visible within 5m")));
  EXPECT_EQ(Session("w0").Last<control::CommitCheckpoint>()->manifest, "");
  EXPECT_EQ(Session("w1").Last<control::CommitCheckpoint>(), nullptr);
}

TEST_F(ClusterTest, ACommitThatNobodyAnswersFails) {
  AttachWorkers(1);
  const control::JobKey key = RunJob(SavingSpec("j", 1, 1));
  TrainTo(key, 1);
  ReportPart("w0", key, 0, 1);
  Say("w0", key, 0, control::Phase::kFinished);
  Detach("w0");
  Advance(absl::Minutes(5));
  EXPECT_THAT(Job("j").notices,
              ElementsAre("the checkpoint of step 1 failed: no worker made it visible within 5m"));
  EXPECT_EQ(Job("j").state, JobState::kQueued);
  EXPECT_THAT(Job("j").transitions.back().reason,
              HasSubstr("its only step is done, but the checkpoint of step 1 failed"));
}

TEST_F(ClusterTest, AJobWhoseLastCheckpointFailsGoesOnFromTheOneBefore) {
  AttachWorkers(1);
  control::JobKey key = RunJob(SavingSpec("j", 1, 12));
  TrainTo(key, 10);
  SaveAt(key, 10);
  TrainTo(key, 12);
  ReportPart("w0", key, 0, 12, "no space left on device");
  Say("w0", key, 0, control::Phase::kFinished);
  EXPECT_EQ(Job("j").state, JobState::kStarting);
  EXPECT_EQ(Job("j").generation, Generation(2));
  key = AdmitAll("j", 10);
  for (const int step : {11, 12}) Report("w0", key, 0, step);
  SaveAt(key, 12);
  Say("w0", key, 0, control::Phase::kFinished);
  EXPECT_EQ(Job("j").state, JobState::kSucceeded);
  EXPECT_EQ(Job("j").checkpoint->step, StepId(12));
}

TEST_F(ClusterTest, AJobWhoseLastCheckpointFailsEachTimeFails) {
  AttachWorkers(1);
  control::JobKey key = RunJob(SavingSpec("j", 1, 1));
  TrainTo(key, 1);
  for (int generation = 1; generation <= 4; ++generation) {
    // The faults are errors, so the job waits for 10 s and 20 s, and is given up after the fourth.
    for (int second = 0; second < 20 && Job("j").state == JobState::kQueued; ++second)
      AdvanceHearing({"w0"}, absl::Seconds(1));
    if (generation > 1) key = AdmitAll("j");
    ReportPart("w0", key, 0, 1, "no space left on device");
    Say("w0", key, 0, control::Phase::kFinished);
  }
  EXPECT_EQ(Job("j").state, JobState::kFailed);
  EXPECT_FALSE(Job("j").invalid_input);
  EXPECT_THAT(Job("j").reason,
              HasSubstr("the checkpoint of step 1 failed: rank 0: no space left on device"));
  EXPECT_THAT(Job("j").reason, HasSubstr("given up after 3 recoveries"));
}

TEST_F(ClusterTest, ARestartOfTheCoordinatorLosesNoPart) {
  AttachWorkers(2);
  const control::JobKey key = RunJob(SavingSpec("j", 2));
  TrainTo(key, 10);
  ReportPart("w1", key, 1, 10);
  EXPECT_EQ(Session("w1").acknowledged, 11);  // it will not be told again
  Restart();
  Attach("w0", "a", Hold{{"j", key.generation}, Rank(0)});
  Attach("w1", "a", Hold{{"j", key.generation}, Rank(1)});
  ReportPart("w0", key, 0, 10);
  ASSERT_NE(Session("w0").Last<control::CommitCheckpoint>(), nullptr);
  const std::string manifest = Session("w0").Last<control::CommitCheckpoint>()->manifest;
  Restart();  // while it is committed: the same is asked for again
  Attach("w0", "a", Hold{{"j", key.generation}, Rank(0)});
  ASSERT_NE(Session("w0").Last<control::CommitCheckpoint>(), nullptr);
  EXPECT_EQ(Session("w0").Last<control::CommitCheckpoint>()->manifest, manifest);
  Answer("w0", key, 10);
  EXPECT_EQ(Job("j").checkpoint->step, StepId(10));
}

TEST_F(ClusterTest, AFinishedJobIsCommittedAfterARestart) {
  AttachWorkers(1);
  const control::JobKey key = RunJob(SavingSpec("j", 1, 1));
  TrainTo(key, 1);
  ReportPart("w0", key, 0, 1);
  Say("w0", key, 0, control::Phase::kFinished);
  Restart();
  Attach("w0", "a", Hold{{"j", key.generation}, Rank(0)});
  Say("w0", key, 0, control::Phase::kFinished);
  EXPECT_EQ(Job("j").state, JobState::kRunning);
  Answer("w0", key, 1);
  EXPECT_EQ(Job("j").state, JobState::kSucceeded);
}

TEST_F(ClusterTest, AFinishedRankThatWasLostIsHeldWhenItsWorkerComesBack) {
  AttachWorkers(1);
  const control::JobKey key = RunJob(SavingSpec("j", 1, 1));
  TrainTo(key, 1);
  ReportPart("w0", key, 0, 1);
  Say("w0", key, 0, control::Phase::kFinished);
  Lose("w0");
  ASSERT_EQ(Job("j").state, JobState::kRunning);  // its checkpoint is not visible yet
  ASSERT_TRUE(Submit(Spec("k", 1)).ok());
  Attach("w0", "a", Hold{{"j", key.generation}, Rank(0)});
  Settle();
  EXPECT_EQ(Job("k").state, JobState::kQueued);
  Answer("w0", key, 1);
  EXPECT_EQ(Job("j").state, JobState::kSucceeded);
  Settle();
  EXPECT_EQ(Job("k").state, JobState::kStarting);
}

// Its worker's new process has a rank of another job when the coordinator is restarted.
TEST_F(ClusterTest, ARankThatWasLostStaysLostAfterARestart) {
  AttachWorkers(1);
  const control::JobKey key = RunJob(SavingSpec("j", 1, 1));
  TrainTo(key, 1);
  ReportPart("w0", key, 0, 1);
  Say("w0", key, 0, control::Phase::kFinished);
  Lose("w0");
  Attach("w0", "b");
  const control::JobKey other = RunJob("k", 1);
  ASSERT_EQ(Job("j").state, JobState::kRunning);
  Restart();
  EXPECT_EQ(Job("j").state, JobState::kRecovering);
  Attach("w0", "b", Hold{other, Rank(0)});
  Answer("w0", key, 1);
  EXPECT_EQ(Job("j").state, JobState::kQueued);
  EXPECT_EQ(Job("k").state, JobState::kRunning);
  EXPECT_EQ(StateOf("w0"), membership::WorkerState::kBusy);
}

TEST_F(ClusterTest, ACancelledJobDoesNotWaitForItsCheckpoint) {
  AttachWorkers(1);
  const control::JobKey key = RunJob(SavingSpec("j", 1));
  TrainTo(key, 10);
  ReportPart("w0", key, 0, 10);
  ASSERT_TRUE(Cancel("j").ok());
  Say("w0", key, 0, control::Phase::kAborted);
  EXPECT_EQ(Job("j").state, JobState::kCancelled);
  Answer("w0", key, 10);
  EXPECT_FALSE(Job("j").checkpoint.has_value());
}

TEST_F(ClusterTest, TwoJobsThatHaveNotEndedDoNotShareADirectory) {
  ASSERT_TRUE(Submit(SavingSpec("j", 1)).ok());
  ASSERT_TRUE(Pause("j").ok());
  config::JobSpec other = SavingSpec("k", 1);
  other.checkpoint->directory = "/checkpoints/./j/";
  EXPECT_EQ(Submit(other).status().message(),
            "checkpoint.directory is /checkpoints/./j/: is that of job j, which is PAUSED; name "
            "another one, or end that job first");
  EXPECT_EQ(Submit(other).status().code(), absl::StatusCode::kInvalidArgument);
  Restart();
  EXPECT_FALSE(Submit(other).ok());
  ASSERT_TRUE(Cancel("j").ok());
  EXPECT_TRUE(Submit(other).ok());
}

// The same directory may have several names, which only a worker can tell.
TEST_F(ClusterTest, RanksAreToldWhichOtherJobsMayOwnADirectory) {
  ASSERT_TRUE(Submit(SavingSpec("paused", 1)).ok());
  ASSERT_TRUE(Pause("paused").ok());
  ASSERT_TRUE(Submit(SavingSpec("over", 1)).ok());
  ASSERT_TRUE(Cancel("over").ok());
  AttachWorkers(2);
  RunJob(Spec("unsaved", 1, 100));
  const control::JobKey key = RunJob(SavingSpec("j", 1));
  const std::string worker = Job("j").ranks[0].worker;
  const auto told = [&] { return *Session(worker).Last<control::Prepare>()->assignment(); };
  EXPECT_EQ(told().job_id, Job("j").id);
  EXPECT_THAT(told().other_jobs, ElementsAre(Job("paused").id));
  ASSERT_TRUE(Cancel("paused").ok());
  Say(worker, key, 0, control::Phase::kFailed, "boom");
  EXPECT_EQ(told().key.generation, Generation(2));
  EXPECT_THAT(told().other_jobs, IsEmpty());
}

}  // namespace
}  // namespace takt::job
