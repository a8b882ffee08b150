// SPDX-License-Identifier: Apache-2.0
// Tests jobs that go on after a fault.
#include "absl/strings/str_cat.h"
#include "common/base/version.h"
#include "coordinator/job/cluster_harness.h"
#include "coordinator/job/spec_serde.h"
#include "gmock/gmock.h"

namespace takt::job {
namespace {

using membership::Hold;
using store::JobState;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RecoveryTest : public ClusterTest {
 protected:
  // The rank of w1 has an error. The other worker lets go.
  void FailRank(const control::JobKey& key) {
    Say("w1", key, 1, control::Phase::kFailed, "INTERNAL: boom");
    Say("w0", key, 0, control::Phase::kAborted);
  }
  // Waits until the job begins again, and returns how long that took.
  absl::Duration AwaitStart(const std::string& job) {
    std::vector<std::string> names;
    for (const auto& [name, worker] : workers_) names.push_back(name);
    absl::Duration waited;
    while (Job(job).state == JobState::kQueued && waited < absl::Minutes(10)) {
      AdvanceHearing(names, absl::Seconds(1));
      waited += absl::Seconds(1);
    }
    EXPECT_EQ(Job(job).state, JobState::kStarting);
    return waited;
  }
  // Job j has two faults without a new step, so that it waits.
  void FailTwice() {
    AttachWorkers(3);
    FailRank(RunJob(SavingSpec("j", 2)));
    const control::JobKey key = AdmitAll("j");
    ASSERT_EQ(Job("j").ranks[1].worker, "w2");
    Say("w2", key, 1, control::Phase::kFailed, "INTERNAL: bang");
    Say("w0", key, 0, control::Phase::kAborted);
    ASSERT_EQ(Job("j").state, JobState::kQueued);
  }
  // Job j goes on after losses of so many workers. Before each the wall clock is set.
  void LoseOneAfterTheOther(int losses, absl::Duration clock_step) {
    AttachWorkers(8);
    TrainTo(RunJob(SavingSpec("j", 2)), 4);
    for (int loss = 1; loss <= losses; ++loss) {
      const control::JobKey key{"j", Job("j").generation};
      const std::vector<control::BoundRank> ranks = Job("j").ranks;
      ASSERT_EQ(ranks.size(), 2u);
      clock_.Step(clock_step);
      Lose(ranks[1].worker);
      Say(ranks[0].worker, key, 0, control::Phase::kAborted);
      AwaitStart("j");
    }
    EXPECT_EQ(AdmitAll("j").generation, Generation(losses + 1));
  }
  // Returns what the stored spec says.
  std::string DivisionOf(const std::string& job) {
    const config::JobSpec spec = ParseSpec(Job(job).spec).value();
    return absl::StrCat("data ", spec.parallelism.data.value_or(0), ", microbatch ",
                        spec.microbatch);
  }
};

// An upgrade of the workers may be under way.
TEST_F(RecoveryTest, AJobWaitsForAWorkerWhoseProgramKnowsItsFields) {
  AttachWorkers(2);
  AttachOld("w2", kAllFieldsProtocolVersion - 1);
  config::JobSpec spec = SavingSpec("j", 2);
  spec.model.parameter_bytes = 1'000'000;
  const control::JobKey key = RunJob(spec);
  TrainTo(key, 10);
  SaveAt(key, 10);
  Lose("w1");
  Say("w0", key, 0, control::Phase::kAborted);
  EXPECT_EQ(Job("j").state, JobState::kQueued);
  EXPECT_THAT(Job("j").reason, HasSubstr("1 idle whose takt-worker is too old for the job"));
  Attach("w3");
  EXPECT_EQ(Job("j").state, JobState::kStarting);
  EXPECT_EQ(Job("j").ranks[1].worker, "w3");
}

TEST_F(RecoveryTest, AJobGoesOnFromItsCheckpointWhenItsWorkerIsBack) {
  AttachWorkers(2);
  control::JobKey key = RunJob(SavingSpec("j", 2));
  TrainTo(key, 10);
  SaveAt(key, 10);
  TrainTo(key, 13);
  Lose("w1");
  EXPECT_EQ(Job("j").state, JobState::kRecovering);
  ASSERT_NE(Session("w0").Last<control::Abort>(), nullptr);
  Say("w0", key, 0, control::Phase::kAborted, "", "RECV 1B3 from pp rank 1");
  EXPECT_EQ(Job("j").state, JobState::kQueued);
  EXPECT_THAT(Job("j").transitions.back().reason,
              HasSubstr("worker w1 (rank 1) lost: its stream ended"));
  EXPECT_THAT(Job("j").transitions.back().reason,
              HasSubstr("goes on from the checkpoint of step 10"));
  EXPECT_EQ(Job("j").reason, "needs 2 workers, 1 idle: no other is attached");
  EXPECT_EQ(Job("j").fault.size(), 2u);
  Attach("w1", "b");
  key = AdmitAll("j", 10);
  EXPECT_EQ(key.generation, Generation(2));

  // Steps 11 to 13 are done again and not committed again.
  for (int step = 11; step <= 15; ++step) {
    for (const int rank : {0, 1}) Report(rank == 0 ? "w0" : "w1", key, rank, step);
  }
  EXPECT_THAT(StoredSteps("j"), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  EXPECT_EQ(Session("w0").acknowledged, 5);
}

TEST_F(RecoveryTest, ASpareWorkerTakesTheRankOfALostOne) {
  AttachWorkers(3);
  const control::JobKey key = RunJob(SavingSpec("j", 2));
  Lose("w1");
  Say("w0", key, 0, control::Phase::kAborted);
  EXPECT_EQ(Job("j").state, JobState::kStarting);
  EXPECT_EQ(Job("j").ranks[1].worker, "w2");
}

TEST_F(RecoveryTest, AJobWithoutAFixedPipelineGoesOnWithFewer) {
  AttachWorkers(3);
  const control::JobKey key = RunJob(SavingSpec("j", 0));
  Lose("w1");
  Say("w0", key, 0, control::Phase::kAborted);
  Say("w2", key, 2, control::Phase::kAborted);
  EXPECT_EQ(Job("j").state, JobState::kStarting);
  EXPECT_EQ(Job("j").ranks.size(), 2u);
}

// What changes the bits of losses does not change with the workers that are left.
TEST_F(RecoveryTest, WhatTheFirstPlanChoseForAutoStaysWithFewerWorkers) {
  AttachWorkers(4);
  const control::JobKey key = RunJob(OpenSpec("j"));
  EXPECT_EQ(Job("j").plan.mesh.pp_size, 2);
  EXPECT_EQ(DivisionOf("j"), "data 2, microbatch 4");
  EXPECT_THAT(
      Job("j").transitions[2].reason,
      HasSubstr("preparing 4 ranks; data: auto is 2; microbatch: auto is 4 for as long as"));
  const absl::StatusOr<control::Assignment> assignment =
      Session("w0").Last<control::Prepare>()->assignment();
  ASSERT_TRUE(assignment.ok());
  EXPECT_EQ(assignment->job.microbatch, 4);
  EXPECT_EQ(assignment->job.parallelism.data, 2);

  hold_plans_ = true;
  Lose("w3");
  for (const int rank : {0, 1, 2})
    Say(absl::StrCat("w", rank), key, rank, control::Phase::kAborted);
  ASSERT_EQ(plans_.size(), 1u);
  EXPECT_EQ(plans_[0].options.max_workers, 3);
  EXPECT_FALSE(plans_[0].spec.LeavesBitsOpen());
  EXPECT_EQ(plans_[0].spec.microbatch, 4);
  EXPECT_EQ(plans_[0].spec.parallelism.data, 2);
  hold_plans_ = false;
  Settle();
  EXPECT_EQ(Job("j").state, JobState::kStarting);
  EXPECT_EQ(Job("j").ranks.size(), 2u);  // a pipeline of one rank, twice
  EXPECT_EQ(Job("j").transitions.back().reason, "preparing 2 ranks");
}

TEST_F(RecoveryTest, AJobWaitsForTheReplicasThatItsFirstPlanChose) {
  AttachWorkers(2);
  const control::JobKey key = RunJob(OpenSpec("j"));
  Lose("w1");
  Say("w0", key, 0, control::Phase::kAborted);
  EXPECT_EQ(Job("j").reason, "needs 2 workers, 1 idle: no other is attached");
}

TEST_F(RecoveryTest, ARankThatFailedIsRecoveredFrom) {
  AttachWorkers(1);
  const control::JobKey key = RunJob(SavingSpec("j", 1));
  Say("w0", key, 0, control::Phase::kFailed, "connection reset by rank 1");
  EXPECT_EQ(Job("j").state, JobState::kStarting);
  EXPECT_EQ(Job("j").generation, Generation(2));
}

TEST_F(RecoveryTest, InvalidInputIsNotTriedAgain) {
  AttachWorkers(1);
  ASSERT_TRUE(Submit(SavingSpec("j", 1)).ok());
  const control::JobKey key{"j", Generation(1)};
  cluster_->Update(workers_.at("w0").id,
                   {.key = key,
                    .rank = Rank(0),
                    .phase = control::Phase::kRefused,
                    .failure = {.error = "no such file", .invalid_input = true}},
                   Moment::Of(clock_));
  Settle();
  EXPECT_EQ(Job("j").state, JobState::kFailed);
  EXPECT_TRUE(Job("j").invalid_input);
}

// w1's host has lost the mount of the token files. A stale handle used to end the job for good.
TEST_F(RecoveryTest, InputsThatOneWorkerCannotReadAreTriedAgain) {
  AttachWorkers(2);
  ASSERT_TRUE(Submit(Spec("j", 2)).ok());
  const auto refuse = [&](int rank) {
    cluster_->Update(workers_.at(rank == 0 ? "w0" : "w1").id,
                     {.key = {"j", Job("j").generation},
                      .rank = Rank(rank),
                      .phase = control::Phase::kRefused,
                      .failure = {.error = "data.train.path is kjv.txt: must exist",
                                  .violations = {{.field = "data.train.path"}},
                                  .cause = control::Cause::kInputs}},
                     Moment::Of(clock_));
    Settle();
  };
  refuse(1);
  EXPECT_EQ(Job("j").state, JobState::kStarting);
  for (int second = 0; second < 3; ++second) {
    Heartbeat("w0", {"j", Generation(1)}, 0, 0, "CONNECT");
    Heartbeat("w1", {"j", Generation(1)}, 1, 0, "LOAD");
    Advance(absl::Seconds(1));
  }
  ASSERT_NE(Session("w0").Last<control::Abort>(), nullptr);
  Say("w0", {"j", Generation(1)}, 0, control::Phase::kAborted);
  EXPECT_EQ(Job("j").state, JobState::kStarting);
  EXPECT_EQ(Job("j").generation, Generation(2));
  // Now both say the same, as for a name that is misspelt.
  refuse(0);
  refuse(1);
  EXPECT_EQ(Job("j").state, JobState::kFailed);
  EXPECT_TRUE(Job("j").invalid_input);
  EXPECT_EQ(Job("j").violations.size(), 1u);
}

TEST_F(RecoveryTest, AJobThatDoesNotGetAnyFurtherFailsWithItsHistory) {
  AttachWorkers(2);
  control::JobKey key = RunJob(SavingSpec("j", 2));
  TrainTo(key, 4);
  std::vector<absl::Duration> waits;
  for (int fault = 1; fault <= 3; ++fault) {
    FailRank(key);
    waits.push_back(AwaitStart("j"));
    key = AdmitAll("j");
  }
  EXPECT_THAT(waits, ElementsAre(absl::ZeroDuration(), absl::Seconds(10), absl::Seconds(20)));
  EXPECT_EQ(key.generation, Generation(4));
  FailRank(key);
  EXPECT_EQ(Job("j").state, JobState::kFailed);
  EXPECT_THAT(Job("j").reason, HasSubstr("given up after 3 recoveries without a step after 4: "
                                         "worker w1 (rank 1) failed: INTERNAL: boom"));
  EXPECT_EQ(Job("j").fault.size(), 2u);
}

TEST_F(RecoveryTest, ANewStepAllowsAsManyRecoveriesAgain) {
  AttachWorkers(2);
  control::JobKey key = RunJob(SavingSpec("j", 2));
  for (int fault = 1; fault <= 6; ++fault) {
    TrainTo(key, fault);
    FailRank(key);
    key = AdmitAll("j");
  }
  EXPECT_EQ(Job("j").state, JobState::kRunning);
}

// A rack, or spot capacity.
TEST_F(RecoveryTest, LossesOneAfterTheOtherDoNotEndAJobBesideHealthySpares) {
  LoseOneAfterTheOther(5, absl::ZeroDuration());
  for (const auto& [name, worker] : cluster_->workers()) EXPECT_FALSE(worker.blame.quarantined);
}

TEST_F(RecoveryTest, AClockThatIsSetForwardGivesNoJobUp) {
  LoseOneAfterTheOther(5, absl::Hours(2));
}

TEST_F(RecoveryTest, AClockThatIsSetEndsNoWaitAndMakesNoneLonger) {
  FailTwice();
  for (const absl::Duration step : {absl::Hours(5), -absl::Hours(7)}) {
    clock_.Step(step);
    Advance(absl::Seconds(1));
    EXPECT_EQ(Job("j").state, JobState::kQueued);
  }
  EXPECT_EQ(AwaitStart("j"), absl::Seconds(8));
}

TEST_F(RecoveryTest, AClockThatIsSetBackAcrossARestartMakesNoWaitLonger) {
  FailTwice();
  clock_.Step(-absl::Hours(7));
  Restart();
  AttachWorkers(3);
  EXPECT_EQ(AwaitStart("j"), absl::Seconds(10));
}

TEST_F(RecoveryTest, AJobWaitsLongerAfterEachFaultAndSaysUntilWhen) {
  FailTwice();
  EXPECT_EQ(Job("j").reason, "begins again at 13:46:50 UTC, after 2 faults without a new step");
  // Its workers are not given away meanwhile, and a restart does not shorten the wait.
  Restart();
  AttachWorkers(3);
  EXPECT_EQ(Job("j").reason, "begins again at 13:46:50 UTC, after 2 faults without a new step");
  EXPECT_EQ(AwaitStart("j"), absl::Seconds(10));
}

TEST_F(RecoveryTest, TheCountOfRecoveriesSurvivesARestart) {
  AttachWorkers(2);
  control::JobKey key = RunJob(SavingSpec("j", 2));
  for (int fault = 1; fault <= 3; ++fault) {
    FailRank(key);
    AwaitStart("j");
    key = AdmitAll("j");
  }
  Restart();
  Attach("w0", "a", Hold{{"j", key.generation}, Rank(0)});
  Attach("w1", "a", Hold{{"j", key.generation}, Rank(1)});
  FailRank(key);
  EXPECT_EQ(Job("j").state, JobState::kFailed);
  EXPECT_THAT(Job("j").reason, HasSubstr("given up after 3 recoveries"));
}

TEST_F(RecoveryTest, ARestartWhileRecovering) {
  AttachWorkers(3);
  const control::JobKey key = RunJob(SavingSpec("j", 3));
  Lose("w1");
  Say("w0", key, 0, control::Phase::kAborted);
  ASSERT_EQ(Job("j").state, JobState::kRecovering);
  Restart();
  EXPECT_EQ(Job("j").state, JobState::kRecovering);
  Attach("w2", "a", Hold{{"j", key.generation}, Rank(2)});
  ASSERT_NE(Session("w2").Last<control::Abort>(), nullptr);
  Say("w2", key, 2, control::Phase::kAborted);
  Advance(absl::Seconds(2));  // the others have nothing to say
  EXPECT_EQ(Job("j").state, JobState::kQueued);
  Attach("w0");
  Attach("w1", "b");
  EXPECT_EQ(Job("j").state, JobState::kStarting);
  EXPECT_EQ(Job("j").generation, Generation(2));
}

TEST_F(RecoveryTest, CancelWhileRecovering) {
  AttachWorkers(2);
  const control::JobKey key = RunJob(SavingSpec("j", 2));
  Lose("w1");
  ASSERT_EQ(Job("j").state, JobState::kRecovering);
  ASSERT_TRUE(Cancel("j").ok());
  Say("w0", key, 0, control::Phase::kAborted);
  EXPECT_EQ(Job("j").state, JobState::kCancelled);
}

TEST_F(RecoveryTest, WhatRanksDidAtTheNewestFaultStaysWithAJobThatGoesOn) {
  AttachWorkers(2);
  const control::JobKey key = RunJob(SavingSpec("j", 2));
  Heartbeat("w1", key, 1, 12, "1F3");
  Lose("w1");
  Say("w0", key, 0, control::Phase::kAborted, "", "RECV 1B3 from pp rank 1");
  ASSERT_EQ(Job("j").state, JobState::kQueued);
  ASSERT_EQ(Job("j").fault.size(), 2u);
  EXPECT_EQ(Job("j").fault[0].waiting_for, "RECV 1B3 from pp rank 1");
  EXPECT_EQ(Job("j").fault[1].instruction, "1F3");
  // A halt is no fault.
  Attach("w1");
  const control::JobKey again = AdmitAll("j");
  ASSERT_TRUE(Pause("j").ok());
  for (const int rank : {0, 1}) {
    const std::string worker = Job("j").ranks.at(rank).worker;
    Say(worker, again, rank, control::Phase::kHalted, "", "nothing much");
  }
  EXPECT_EQ(Job("j").state, JobState::kPaused);
  EXPECT_EQ(Job("j").fault.at(0).waiting_for, "RECV 1B3 from pp rank 1");
}

TEST_F(RecoveryTest, AnAutomaticResumeMayTakeWhatIsInTheDirectory) {
  AttachWorkers(1);
  const control::JobKey key = RunJob(SavingSpec("j", 1));
  EXPECT_EQ(Session("w0").Last<control::Prepare>()->assignment()->resume, "auto");
  EXPECT_EQ(Session("w0").Last<control::Prepare>()->assignment()->resume_at_most, StepId(0));
  TrainTo(key, 1);
  SaveAt(key, 1);
  Say("w0", key, 0, control::Phase::kFailed, "boom");
  EXPECT_EQ(Session("w0").Last<control::Prepare>()->assignment()->resume, "auto");
  EXPECT_EQ(Session("w0").Last<control::Prepare>()->assignment()->resume_at_most, StepId(0));
}

TEST_F(RecoveryTest, AJobThatBeganAnewTakesOnlyItsOwnCheckpoints) {
  AttachWorkers(1);
  config::JobSpec spec = SavingSpec("j", 1);
  spec.checkpoint->resume = "none";
  control::JobKey key = RunJob(spec);
  EXPECT_EQ(Session("w0").Last<control::Prepare>()->assignment()->resume, "none");
  Say("w0", key, 0, control::Phase::kFailed, "boom");
  EXPECT_EQ(Session("w0").Last<control::Prepare>()->assignment()->resume, "none");
  key = AdmitAll("j");
  TrainTo(key, 7);
  SaveAt(key, 7);
  Say("w0", key, 0, control::Phase::kFailed, "boom");
  EXPECT_EQ(Session("w0").Last<control::Prepare>()->assignment()->resume, "auto");
  EXPECT_EQ(Session("w0").Last<control::Prepare>()->assignment()->resume_at_most, StepId(7));
}

TEST_F(RecoveryTest, RanksAreToldWhichCheckpointTheyMustSee) {
  AttachWorkers(1);
  const auto saved = [&] { return Session("w0").Last<control::Prepare>()->assignment()->saved; };
  ASSERT_TRUE(Submit(SavingSpec("j", 1)).ok());
  EXPECT_EQ(saved(), StepId(0));
  control::JobKey key = AdmitAll("j", 5);  // of an earlier job
  Say("w0", key, 0, control::Phase::kFailed, "boom");
  EXPECT_EQ(saved(), StepId(5));
  key = AdmitAll("j", 5);
  TrainTo(key, 10);
  SaveAt(key, 10);
  Say("w0", key, 0, control::Phase::kFailed, "boom");
  EXPECT_EQ(saved(), StepId(10));
  Restart();
  Attach("w0", "b");
  EXPECT_EQ(saved(), StepId(10));
  // That one is damaged, so the job goes on from an older one. It must not lose this one too.
  key = AdmitAll("j", 5);
  EXPECT_EQ(Job("j").checkpoint->step, StepId(5));
  Say("w0", key, 0, control::Phase::kFailed, "boom");
  AwaitStart("j");
  EXPECT_EQ(saved(), StepId(5));
}

TEST_F(RecoveryTest, RanksThatWouldBeginAnewDoNotTrain) {
  AttachWorkers(1);
  control::JobKey key = RunJob(SavingSpec("j", 1));
  TrainTo(key, 10);
  SaveAt(key, 10);
  Say("w0", key, 0, control::Phase::kFailed, "boom");
  key = {"j", Generation(2)};
  cluster_->Update(workers_.at("w0").id, {.key = key, .rank = Rank(0)}, Moment::Of(clock_));
  Settle();
  EXPECT_EQ(Session("w0").Last<control::Start>()->key.generation, Generation(1));
  ASSERT_NE(Session("w0").Last<control::Abort>(), nullptr);
  EXPECT_EQ(Session("w0").Last<control::Abort>()->key, key);
}

TEST_F(RecoveryTest, AJobResumedFromAnotherOnesCheckpointCommitsTheStepsAfterIt) {
  AttachWorkers(1);
  ASSERT_TRUE(Submit(SavingSpec("j", 1, 52)).ok());
  const control::JobKey key = AdmitAll("j", 50);
  Report("w0", key, 0, 51);
  Report("w0", key, 0, 52);
  EXPECT_THAT(StoredSteps("j"), ElementsAre(51, 52));
  SaveAt(key, 52);
  Say("w0", key, 0, control::Phase::kFinished);
  EXPECT_EQ(Job("j").state, JobState::kSucceeded);
}

TEST_F(RecoveryTest, AJobResumedAtItsEndSucceedsWithoutAStep) {
  AttachWorkers(1);
  ASSERT_TRUE(Submit(SavingSpec("j", 1, 50)).ok());
  const control::JobKey key = AdmitAll("j", 50);
  Say("w0", key, 0, control::Phase::kFinished);
  EXPECT_EQ(Job("j").state, JobState::kSucceeded);
}

TEST_F(RecoveryTest, ARestartKeepsWhatAJobResumedFrom) {
  AttachWorkers(1);
  ASSERT_TRUE(Submit(SavingSpec("j", 1)).ok());
  const control::JobKey key = AdmitAll("j", 50);
  Restart();
  Attach("w0", "a", Hold{{"j", key.generation}, Rank(0)});
  Report("w0", key, 0, 51);
  EXPECT_THAT(StoredSteps("j"), ElementsAre(51));
}

TEST_F(RecoveryTest, NotesOfAdmissionBecomeWarnings) {
  AttachWorkers(1);
  ASSERT_TRUE(Submit(SavingSpec("j", 1)).ok());
  const control::JobKey key{"j", Generation(1)};
  cluster_->Update(workers_.at("w0").id,
                   {.key = key,
                    .rank = Rank(0),
                    .resumed = {.step = StepId(50),
                                .notes = {"step 100 was passed over: model-1 is damaged"},
                                .kernel_plan = "12 shapes"}},
                   Moment::Of(clock_));
  Settle();
  EXPECT_EQ(Job("j").kernel_plan, "12 shapes");
  EXPECT_THAT(Job("j").notices, ElementsAre("step 100 was passed over: model-1 is damaged"));
}

TEST_F(RecoveryTest, RanksThatLoadedDifferentCheckpointsDoNotTrain) {
  AttachWorkers(2);
  ASSERT_TRUE(Submit(SavingSpec("j", 2)).ok());
  const control::JobKey key{"j", Generation(1)};
  for (const int rank : {0, 1}) {
    cluster_->Update(workers_.at(rank == 0 ? "w0" : "w1").id,
                     {.key = key, .rank = Rank(rank), .resumed = {.step = StepId(10 * rank)}},
                     Moment::Of(clock_));
  }
  Settle();
  EXPECT_EQ(Session("w0").Last<control::Start>(), nullptr);
  EXPECT_EQ(Job("j").state, JobState::kRecovering);
  EXPECT_THAT(Job("j").reason, HasSubstr("the ranks loaded different checkpoints: rank 0 that of "
                                         "step 0, not so rank 1 (w1)"));
}

}  // namespace
}  // namespace takt::job
