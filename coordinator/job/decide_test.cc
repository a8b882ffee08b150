// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/decide.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::job {
namespace {

using store::JobState;
using ::testing::HasSubstr;
using ::testing::Not;

class DecideTest : public ::testing::Test {
 protected:
  DecideTest() {
    job_ = {.state = JobState::kStarting, .steps = 20};
    for (int rank = 0; rank < 3; ++rank) {
      run_.ranks.push_back({.bound = {.rank = Rank(rank), .worker = absl::StrCat("w", rank)}});
    }
  }
  // So that there are so many in all.
  void AddRanks(int count) {
    for (int rank = static_cast<int>(run_.ranks.size()); rank < count; ++rank)
      run_.ranks.push_back({.bound = {.rank = Rank(rank), .worker = absl::StrCat("w", rank)}});
  }
  void All(RankPhase phase) {
    for (RankRun& rank : run_.ranks) rank.phase = phase;
  }
  void Running() {
    job_.state = JobState::kRunning;
    All(RankPhase::kRunning);
  }
  void Stopping(const std::string& reason, JobState state = JobState::kFailed) {
    job_.stop = store::JobStop{.state = state, .reason = reason};
    run_.stop_since = now_;
  }
  void Commit(int step) { run_.steps = StepCollector({.pp_size = 3}, StepId(step)); }
  Decision DecideNow() {
    return Decide({.wall = absl::FromUnixSeconds(1000), .steady = now_}, job_, run_, options_);
  }

  DecideOptions options_;
  absl::Duration now_ = absl::Seconds(100);
  store::JobRecord job_;
  JobRun run_{.since = absl::Seconds(100)};
};

TEST_F(DecideTest, StartingWaitsNamingWhoIsNotAdmitted) {
  run_.ranks[1].phase = RankPhase::kAdmitted;
  const Decision decision = DecideNow();
  EXPECT_EQ(decision.kind, Decision::Kind::kWait);
  EXPECT_EQ(decision.reason, "waiting for rank 0 (w0), rank 2 (w2) to load and connect");
}

TEST_F(DecideTest, OfManyRanksAReasonNamesTheFirstAndCountsTheOthers) {
  AddRanks(1000);
  EXPECT_EQ(DecideNow().reason,
            "waiting for rank 0 (w0), rank 1 (w1), rank 2 (w2), rank 3 (w3) and 996 others to load "
            "and connect");
  for (RankRun& rank : run_.ranks) {
    rank.phase = RankPhase::kAborted;
    rank.status.waiting_for = "RECV 1B3";
  }
  Stopping("worker w0 was lost");
  const Decision decision = DecideNow();
  EXPECT_EQ(decision.kind, Decision::Kind::kEnd);
  EXPECT_THAT(decision.reason, HasSubstr("; rank 7 (w7) was waiting for RECV 1B3; and 992 more"));
  EXPECT_LT(decision.reason.size(), 1000u);
}

TEST_F(DecideTest, StartsWhenAllAreAdmitted) {
  All(RankPhase::kAdmitted);
  const Decision decision = DecideNow();
  EXPECT_EQ(decision.kind, Decision::Kind::kStart);
  EXPECT_EQ(decision.state, JobState::kRunning);
  EXPECT_EQ(decision.reason, "all 3 ranks admitted");
}

TEST_F(DecideTest, AJobWithACheckpointNeverBeginsAnew) {
  All(RankPhase::kAdmitted);
  run_.has_checkpoints = true;
  job_.checkpoint = store::JobCheckpoint{.step = StepId(15)};
  EXPECT_EQ(DecideNow().kind, Decision::Kind::kStop);
  EXPECT_EQ(DecideNow().state, JobState::kRecovering);
  EXPECT_EQ(DecideNow().reason,
            "the ranks would begin with step 1, though the job has a checkpoint of step 15");
  // The newer ones are damaged, as the ranks say in their notes.
  for (RankRun& rank : run_.ranks) rank.resumed_step = StepId(10);
  EXPECT_EQ(DecideNow().kind, Decision::Kind::kStart);
}

TEST_F(DecideTest, AJobThatLosesItsCopiesAndSavesNoFilesNeverBeginsAnew) {
  All(RankPhase::kAdmitted);
  job_.last_step = store::StepRecord{.step = StepId(15)};
  EXPECT_EQ(DecideNow().kind, Decision::Kind::kStop);
  EXPECT_EQ(DecideNow().state, JobState::kFailed);
  EXPECT_EQ(DecideNow().reason,
            "the ranks would begin with step 1, though the job has done 15 steps: it saves no "
            "files, and its workers keep no copies now");
  for (RankRun& rank : run_.ranks) rank.resumed_step = StepId(14);
  EXPECT_EQ(DecideNow().kind, Decision::Kind::kStart);
}

TEST_F(DecideTest, StopsWhenAdmissionTakesTooLong) {
  run_.ranks[0].phase = run_.ranks[1].phase = RankPhase::kAdmitted;
  now_ += options_.admission_timeout - absl::Milliseconds(1);
  EXPECT_EQ(DecideNow().kind, Decision::Kind::kWait);
  now_ += absl::Milliseconds(1);
  EXPECT_EQ(DecideNow().kind, Decision::Kind::kStop);
  EXPECT_EQ(DecideNow().reason, "no rank got any further within 5m; not admitted: rank 2 (w2)");
}

TEST_F(DecideTest, ARankThatLoadsMayTakeAnHourAndTheOthersWaitForIt) {
  run_.ranks[0].phase = RankPhase::kAdmitted;
  run_.ranks[1].status = {.instruction = "LOAD"};
  run_.ranks[2].status = {.instruction = "CONNECT", .waiting_for = "all ranks to have loaded"};
  now_ += options_.loading_timeout - absl::Milliseconds(1);
  EXPECT_EQ(DecideNow().kind, Decision::Kind::kWait);
  now_ += absl::Milliseconds(1);
  EXPECT_EQ(DecideNow().reason,
            "no rank got any further within 1h; not admitted: rank 1 (w1), rank 2 (w2)");
}

TEST_F(DecideTest, TheTimeForAdmissionBeginsAnewWhenARankGetsFurther) {
  now_ += 2 * options_.admission_timeout;
  run_.progress = now_ - absl::Seconds(1);
  EXPECT_EQ(DecideNow().kind, Decision::Kind::kWait);
}

TEST_F(DecideTest, ARefusalStopsTheJobWithTheRefusersErrorAndWhetherItIsInvalidInput) {
  run_.ranks[1].phase = RankPhase::kRefused;
  run_.ranks[1].error = "data.train[0].path: no such file";
  run_.ranks[1].invalid_input = true;
  Decision decision = DecideNow();
  EXPECT_EQ(decision.kind, Decision::Kind::kStop);
  EXPECT_EQ(decision.state, JobState::kFailed);
  EXPECT_TRUE(decision.invalid_input);
  EXPECT_EQ(decision.reason,
            "worker w1 (rank 1) refused the job: data.train[0].path: no such file");
  run_.ranks[1].invalid_input = false;
  EXPECT_FALSE(DecideNow().invalid_input);
}

// Every rank looks at the token files.
TEST_F(DecideTest, OnlyInputsThatAllRanksRefuseAreInvalid) {
  const auto refuse = [&](int rank) {
    run_.ranks[rank].phase = RankPhase::kRefused;
    run_.ranks[rank].cause = control::Cause::kInputs;
    run_.ranks[rank].error = "data.train.path is kjv.txt: must exist";
    run_.ranks[rank].violations = {{.field = "data.train.path"}};
    if (!run_.refused_since) run_.refused_since = now_;
  };
  refuse(1);
  EXPECT_EQ(DecideNow().kind, Decision::Kind::kWait);
  EXPECT_THAT(DecideNow().reason,
              HasSubstr("waiting until these have looked, too: rank 0 (w0), rank 2 (w2)"));
  refuse(0);
  EXPECT_EQ(DecideNow().kind, Decision::Kind::kWait);
  refuse(2);
  EXPECT_EQ(DecideNow().kind, Decision::Kind::kStop);
  EXPECT_EQ(DecideNow().state, JobState::kFailed);
  EXPECT_TRUE(DecideNow().invalid_input);
  EXPECT_EQ(DecideNow().violations.size(), 1u);

  // A rank that loads goes on: it has the files.
  run_.ranks[2] = {.bound = run_.ranks[2].bound, .phase = RankPhase::kAdmitted};
  EXPECT_EQ(DecideNow().kind, Decision::Kind::kStop);
  EXPECT_EQ(DecideNow().state, JobState::kRecovering);
  EXPECT_FALSE(DecideNow().invalid_input);
  EXPECT_TRUE(DecideNow().violations.empty());
  // So does one that has not refused them for a while. It may wait for the others.
  run_.ranks[2].phase = RankPhase::kPreparing;
  EXPECT_EQ(DecideNow().kind, Decision::Kind::kWait);
  now_ += options_.inputs_grace;
  EXPECT_EQ(DecideNow().kind, Decision::Kind::kStop);
  EXPECT_FALSE(DecideNow().invalid_input);
  EXPECT_THAT(DecideNow().reason, ::testing::StartsWith("worker w0 (rank 0) refused the job"));
}

// The ranks before it lose their connection to it, and may tell first.
TEST_F(DecideTest, AWrongJobIsWrongWhateverTheNeighboursSay) {
  for (const int rank : {0, 1}) run_.ranks[rank].phase = RankPhase::kRefused;
  run_.ranks[0].cause = control::Cause::kPeer;
  run_.ranks[1].cause = control::Cause::kJob;
  run_.ranks[1].invalid_input = true;
  EXPECT_EQ(DecideNow().state, JobState::kFailed);
  EXPECT_TRUE(DecideNow().invalid_input);
}

TEST_F(DecideTest, ARefusalForAWorkersOwnReasonIsTriedAgainAlsoWithoutCheckpoints) {
  run_.ranks[1].phase = RankPhase::kRefused;
  run_.ranks[1].cause = control::Cause::kWorker;
  EXPECT_EQ(DecideNow().state, JobState::kRecovering);
  run_.ranks[1].cause = control::Cause::kUnknown;
  EXPECT_EQ(DecideNow().state, JobState::kFailed);
  EXPECT_FALSE(DecideNow().invalid_input);
}

// Its neighbours often tell first that they cannot go on.
TEST_F(DecideTest, AWorkerAtFaultIsBlamedInsteadOfTheNeighbourThatFailedFirst) {
  Running();
  run_.ranks[0].phase = RankPhase::kFailed;
  run_.ranks[0].cause = control::Cause::kPeer;
  run_.ranks[0].error = "UNAVAILABLE: peer left";
  Stopping(DecideNow().reason);
  run_.ranks[2].phase = RankPhase::kFailed;
  run_.ranks[2].cause = control::Cause::kWorker;
  run_.ranks[2].error = "INTERNAL: the device is lost";
  run_.ranks[1].phase = RankPhase::kAborted;
  EXPECT_EQ(DecideNow().kind, Decision::Kind::kEnd);
  EXPECT_THAT(DecideNow().reason, ::testing::StartsWith("worker w2 (rank 2) failed: INTERNAL"));
}

TEST_F(DecideTest, ALostWorkerStopsARunningJobNamingWorkerRankStepAndInstruction) {
  Running();
  run_.ranks[1].lost = "its stream ended";
  run_.ranks[1].status.last_step = StepId(12);
  run_.ranks[1].status.instruction = "1F3";
  const Decision decision = DecideNow();
  EXPECT_EQ(decision.kind, Decision::Kind::kStop);
  EXPECT_FALSE(decision.invalid_input);
  EXPECT_EQ(decision.reason,
            "worker w1 (rank 1) lost: its stream ended; last reported step 12, instruction 1F3");
}

TEST_F(DecideTest, ALostWorkerStopsAStartingJobToo) {
  run_.ranks[2].lost = "its stream ended";
  EXPECT_EQ(DecideNow().kind, Decision::Kind::kStop);
  EXPECT_THAT(DecideNow().reason, HasSubstr("before its first report"));
}

TEST_F(DecideTest, AFailedRankStopsTheJob) {
  Running();
  run_.ranks[2].phase = RankPhase::kFailed;
  run_.ranks[2].error = "loss is not finite";
  run_.ranks[2].status.last_step = StepId(3);
  EXPECT_EQ(DecideNow().kind, Decision::Kind::kStop);
  EXPECT_EQ(DecideNow().reason,
            "worker w2 (rank 2) failed: loss is not finite; last reported step 3");
}

TEST_F(DecideTest, StoppingWaitsForAnswersThenEndsTellingWhatEachSurvivorWaitedFor) {
  Running();
  run_.ranks[1].lost = "its stream ended";
  Stopping(DecideNow().reason);
  run_.ranks[0].phase = RankPhase::kAborted;
  run_.ranks[0].status.waiting_for = "RECV 1B3 from pp rank 1";
  EXPECT_EQ(DecideNow().kind, Decision::Kind::kWait);
  EXPECT_THAT(DecideNow().reason, HasSubstr("stopping rank 2 (w2)"));

  run_.ranks[2].phase = RankPhase::kAborted;
  run_.ranks[2].status.instruction = "2F4";
  const Decision decision = DecideNow();
  EXPECT_EQ(decision.kind, Decision::Kind::kEnd);
  EXPECT_EQ(decision.state, JobState::kFailed);
  EXPECT_EQ(decision.reason,
            "worker w1 (rank 1) lost: its stream ended; before its first report; "
            "rank 0 (w0) was waiting for RECV 1B3 from pp rank 1; rank 2 (w2) was at 2F4, waiting "
            "for nothing");
}

TEST_F(DecideTest, StoppingEndsWithoutThoseThatDoNotAnswerInTime) {
  Running();
  run_.ranks[1].lost = "nothing heard from it for 5s";
  run_.ranks[0].phase = RankPhase::kAborted;
  Stopping("x");
  now_ += options_.stop_grace;
  EXPECT_EQ(DecideNow().kind, Decision::Kind::kEnd);
  EXPECT_THAT(DecideNow().reason, HasSubstr("rank 2 (w2) did not answer"));
}

// A dead worker's neighbours often report their broken connection before its own stream is seen to
// end.
TEST_F(DecideTest, AWorkerLostWhileStoppingIsBlamedInsteadOfTheNeighbourThatFailedFirst) {
  Running();
  run_.ranks[0].phase = RankPhase::kFailed;
  run_.ranks[0].error = "peer left";
  run_.ranks[0].status.waiting_for = "RECV 1B3 from pp rank 1";
  Stopping(DecideNow().reason);
  run_.ranks[2].phase = RankPhase::kAborted;
  run_.ranks[1].lost = "its stream ended";
  const Decision decision = DecideNow();
  EXPECT_EQ(decision.kind, Decision::Kind::kEnd);
  EXPECT_THAT(decision.reason, ::testing::StartsWith("worker w1 (rank 1) lost: its stream ended"));
  EXPECT_THAT(decision.reason, HasSubstr("rank 0 (w0) was waiting for RECV 1B3 from pp rank 1"));
}

TEST_F(DecideTest, ARankThatToldOfItsErrorAndThenLeftKeepsItsError) {
  Running();
  run_.ranks[1].phase = RankPhase::kFailed;
  run_.ranks[1].error = "device poisoned";
  Stopping(DecideNow().reason);
  run_.ranks[1].lost = "its stream ended";
  run_.ranks[0].phase = run_.ranks[2].phase = RankPhase::kAborted;
  EXPECT_THAT(DecideNow().reason,
              ::testing::StartsWith("worker w1 (rank 1) failed: device poisoned"));
  EXPECT_THAT(DecideNow().reason, Not(HasSubstr("rank 1 (w1) was")));
}

TEST_F(DecideTest, ACancelledJobEndsAsCancelledWithoutBlame) {
  Running();
  Stopping("cancelled by request", JobState::kCancelled);
  EXPECT_EQ(DecideNow().kind, Decision::Kind::kWait);
  All(RankPhase::kAborted);
  const Decision decision = DecideNow();
  EXPECT_EQ(decision.kind, Decision::Kind::kEnd);
  EXPECT_EQ(decision.state, JobState::kCancelled);
  EXPECT_EQ(decision.reason, "cancelled by request");
}

TEST_F(DecideTest, SucceedsOnlyWhenAllRanksFinishedAndAllStepsAreCommitted) {
  Running();
  EXPECT_EQ(DecideNow().reason, "training");
  All(RankPhase::kFinished);
  run_.finish_since = now_;
  Commit(19);
  EXPECT_EQ(DecideNow().kind, Decision::Kind::kWait);
  EXPECT_EQ(DecideNow().reason, "waiting for step reports 20 to 20");
  Commit(20);
  EXPECT_EQ(DecideNow().kind, Decision::Kind::kEnd);
  EXPECT_EQ(DecideNow().state, JobState::kSucceeded);
}

TEST_F(DecideTest, AJobWithCheckpointsSucceedsOnlyWithTheOneOfItsLastStep) {
  Running();
  All(RankPhase::kFinished);
  Commit(20);
  run_.has_checkpoints = true;
  run_.failed_save = "the checkpoint of step 20 failed: disk full";
  job_.checkpoint = store::JobCheckpoint{.step = StepId(15)};
  EXPECT_EQ(DecideNow().kind, Decision::Kind::kStop);
  EXPECT_EQ(DecideNow().state, JobState::kRecovering);
  EXPECT_EQ(DecideNow().reason,
            "all 20 steps are done, but the checkpoint of step 20 failed: disk full");
  for (int fault = 0; fault < options_.max_recoveries; ++fault)
    job_.faults.push_back({.error = "disk full", .committed = StepId(20)});
  Stopping(DecideNow().reason, JobState::kRecovering);
  EXPECT_EQ(DecideNow().kind, Decision::Kind::kEnd);
  EXPECT_EQ(DecideNow().state, JobState::kFailed);
  EXPECT_FALSE(DecideNow().invalid_input);
  job_.stop.reset();
  run_.failed_save.clear();  // by a restart of the coordinator
  EXPECT_THAT(DecideNow().reason, HasSubstr("but the checkpoint of step 20 is not visible"));
  job_.checkpoint->step = StepId(20);
  EXPECT_EQ(DecideNow().state, JobState::kSucceeded);
  job_.checkpoint.reset();
  job_.resumed_step = StepId(20);
  EXPECT_EQ(DecideNow().state, JobState::kSucceeded);
}

TEST_F(DecideTest, ReportsThatNeverComeAreNamedInTheEnd) {
  Running();
  All(RankPhase::kFinished);
  run_.finish_since = now_;
  Commit(18);
  now_ += options_.reports_grace;
  EXPECT_EQ(DecideNow().state, JobState::kSucceeded);
  EXPECT_EQ(DecideNow().reason, "all ranks finished, but step reports 19 to 20 never came");
}

TEST_F(DecideTest, AFinishedRankMayLeave) {
  Running();
  run_.ranks[0].phase = RankPhase::kFinished;
  run_.ranks[0].lost = "its stream ended";
  EXPECT_EQ(DecideNow().kind, Decision::Kind::kWait);
}

TEST_F(DecideTest, ARankWhoseWorkerIsAwayIsNamedAndTrains) {
  Running();
  run_.ranks[1].away = "its stream ended";
  EXPECT_EQ(DecideNow().kind, Decision::Kind::kWait);
  EXPECT_EQ(DecideNow().reason, "training; nothing is heard of rank 1 (w1)");
  job_.halt = store::JobHalt{.next = JobState::kPaused, .reason = "paused by request"};
  EXPECT_EQ(DecideNow().reason,
            "paused by request; waiting for rank 0 (w0), rank 1 (w1), rank 2 (w2) to end at a step "
            "boundary; nothing is heard of rank 1 (w1)");
}

TEST_F(DecideTest, AFaultOfAJobWithCheckpointsIsRecoveredFrom) {
  Running();
  run_.ranks[1].lost = "its stream ended";
  EXPECT_EQ(DecideNow().kind, Decision::Kind::kStop);
  EXPECT_EQ(DecideNow().state, JobState::kFailed);
  run_.has_checkpoints = true;
  EXPECT_EQ(DecideNow().kind, Decision::Kind::kStop);
  EXPECT_EQ(DecideNow().state, JobState::kRecovering);
}

TEST_F(DecideTest, AJobThatIsGivenUpFailsWithItsHistoryWhenItsRanksHaveLetGo) {
  Running();
  run_.has_checkpoints = true;
  All(RankPhase::kAborted);
  run_.ranks[1].phase = RankPhase::kFailed;
  run_.ranks[1].error = "INTERNAL: boom";
  Commit(7);
  for (int i = 0; i < 3; ++i) {
    job_.faults.push_back({.worker = "w1", .error = "INTERNAL: boom", .committed = StepId(7)});
    job_.transitions.push_back({JobState::kRecovering, absl::FromUnixSeconds(i), "earlier"});
  }
  job_.transitions.push_back({JobState::kRecovering, absl::FromUnixSeconds(9), "now"});
  Stopping("worker w1 (rank 1) failed: INTERNAL: boom", JobState::kRecovering);
  EXPECT_EQ(DecideNow().kind, Decision::Kind::kEnd);
  EXPECT_EQ(DecideNow().state, JobState::kFailed);
  EXPECT_THAT(DecideNow().reason,
              HasSubstr("given up after 3 recoveries without a step after 7: earlier; earlier; "
                        "earlier"));
  Commit(8);  // a new step
  EXPECT_EQ(DecideNow().state, JobState::kQueued);
}

TEST_F(DecideTest, ARecoveringJobWaitsForItsCheckpointAndThenForWorkers) {
  Running();
  run_.has_checkpoints = true;
  run_.saving = "the checkpoint of step 9 to become visible";
  Stopping("worker w1 lost", JobState::kRecovering);
  All(RankPhase::kAborted);
  EXPECT_EQ(DecideNow().reason,
            "worker w1 lost; waiting for the checkpoint of step 9 to become visible");
  run_.saving.clear();
  job_.checkpoint = store::JobCheckpoint{.step = StepId(9)};
  EXPECT_EQ(DecideNow().kind, Decision::Kind::kEnd);
  EXPECT_EQ(DecideNow().state, JobState::kQueued);
  EXPECT_THAT(DecideNow().reason, HasSubstr("goes on from the checkpoint of step 9"));
  job_.halt = store::JobHalt{.next = JobState::kPaused, .reason = "paused by request"};
  EXPECT_EQ(DecideNow().state, JobState::kPaused);
}

TEST_F(DecideTest, HaltedRanksEndTheRunAsWasAsked) {
  Running();
  job_.halt = store::JobHalt{.next = JobState::kPaused, .reason = "paused by request"};
  run_.ranks[0].phase = run_.ranks[2].phase = RankPhase::kHalted;
  EXPECT_EQ(DecideNow().reason,
            "paused by request; waiting for rank 1 (w1) to end at a step boundary");
  All(RankPhase::kHalted);
  run_.saving = "rank 1 (w1) to write the checkpoint of step 9";
  EXPECT_EQ(DecideNow().kind, Decision::Kind::kWait);
  run_.saving.clear();
  EXPECT_EQ(DecideNow().kind, Decision::Kind::kEnd);
  EXPECT_EQ(DecideNow().state, JobState::kPaused);
  job_.halt->next = JobState::kQueued;
  EXPECT_EQ(DecideNow().state, JobState::kQueued);
}

}  // namespace
}  // namespace takt::job
