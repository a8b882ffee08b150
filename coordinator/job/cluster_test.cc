// SPDX-License-Identifier: Apache-2.0
// Tests a job's life and its faults.
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/plan/plan.h"
#include "coordinator/job/cluster_harness.h"
#include "gmock/gmock.h"

namespace takt::job {
namespace {

using membership::WorkerState;
using store::JobState;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<JobState> StatesOf(const store::JobRecord& job) {
  std::vector<JobState> states;
  for (const store::Transition& transition : job.transitions) states.push_back(transition.state);
  return states;
}

std::vector<std::string> WorkersOf(const store::JobRecord& job) {
  std::vector<std::string> workers;
  for (const control::BoundRank& rank : job.ranks) workers.push_back(rank.worker);
  return workers;
}

TEST_F(ClusterTest, AJobRunsFromQueuedToSucceeded) {
  AttachWorkers(2);
  ASSERT_TRUE(Submit(Spec("j", 2)).ok());
  EXPECT_EQ(Job("j").state, JobState::kStarting);
  const control::JobKey key{"j", Generation(1)};
  const control::Prepare* prepare = Session("w1").Last<control::Prepare>();
  ASSERT_NE(prepare, nullptr);
  EXPECT_EQ(prepare->rank, Rank(1));
  EXPECT_EQ(prepare->assignment()->key, key);
  EXPECT_EQ(prepare->assignment()->secret.size(), 32u);
  EXPECT_EQ(prepare->assignment()->threads, 4);  // 8 cores of one host, two workers
  EXPECT_EQ(StateOf("w0"), WorkerState::kBusy);

  Say("w0", key, 0, control::Phase::kAdmitted);
  EXPECT_EQ(Session("w0").Last<control::Start>(), nullptr);
  Say("w1", key, 1, control::Phase::kAdmitted);
  EXPECT_EQ(Job("j").state, JobState::kRunning);
  ASSERT_NE(Session("w0").Last<control::Start>(), nullptr);

  for (const int step : {1, 2}) {
    Report("w0", key, 0, step);
    Report("w1", key, 1, step);
  }
  EXPECT_THAT(StoredSteps("j"), ElementsAre(1, 2));
  EXPECT_EQ(Job("j").last_step->loss, 2.0);
  EXPECT_EQ(Session("w0").acknowledged, 2);
  Say("w0", key, 0, control::Phase::kFinished);
  EXPECT_EQ(Session("w0").Last<control::Acknowledge>(), nullptr);
  Say("w1", key, 1, control::Phase::kFinished);

  EXPECT_EQ(Job("j").state, JobState::kSucceeded);
  EXPECT_EQ(Job("j").reason, "all 2 steps done");
  EXPECT_TRUE(Job("j").end_time.has_value());
  EXPECT_THAT(StatesOf(Job("j")),
              ElementsAre(JobState::kQueued, JobState::kPlanning, JobState::kStarting,
                          JobState::kRunning, JobState::kSucceeded));
  ASSERT_NE(Session("w0").Last<control::Acknowledge>(), nullptr);
  EXPECT_EQ(StateOf("w0"), WorkerState::kIdle);
  EXPECT_EQ(StateOf("w1"), WorkerState::kIdle);
}

TEST_F(ClusterTest, AJobWaitsForItsGangAndSaysForWhat) {
  AttachWorkers(3);
  RunJob("x", 2);
  ASSERT_TRUE(SetDrained("w2", true).ok());
  ASSERT_TRUE(Submit(Spec("j", 2)).ok());
  EXPECT_EQ(Job("j").state, JobState::kQueued);
  EXPECT_EQ(Job("j").reason,
            "needs 2 workers, 0 idle: 2 held by job x, 1 drained; 2 are reserved for it at a time "
            "that is not known yet");
  ASSERT_TRUE(SetDrained("w2", false).ok());
  EXPECT_EQ(Job("j").reason,
            "needs 2 workers, 1 idle: 2 held by job x; 2 are reserved for it at a time that is not "
            "known yet");
  Attach("w3");
  EXPECT_EQ(Job("j").state, JobState::kStarting);
}

TEST_F(ClusterTest, AJobWithoutAFixedPipelineGetsAllIdleWorkersForItsPlan) {
  AttachWorkers(3);
  ASSERT_TRUE(Submit(Spec("j", 0)).ok());
  EXPECT_EQ(Job("j").state, JobState::kStarting);
  EXPECT_THAT(Job("j").ranks, SizeIs(3));
}

TEST_F(ClusterTest, AJobThatCannotBePlannedFailsAsInvalidInputAndFreesItsWorkers) {
  AttachWorkers(2);
  plan_error_ = InvalidField({.field = "batch.global", .value = "7", .rule = "must be divisible"});
  ASSERT_TRUE(Submit(Spec("j", 2)).ok());
  EXPECT_EQ(Job("j").state, JobState::kFailed);
  EXPECT_TRUE(Job("j").invalid_input);
  EXPECT_EQ(Job("j").reason, "batch.global is 7: must be divisible");
  ASSERT_THAT(Job("j").violations, SizeIs(1));
  EXPECT_EQ(Job("j").violations[0].value, "7");
  EXPECT_EQ(StateOf("w0"), WorkerState::kIdle);
}

TEST_F(ClusterTest, AWorkerLostWhilePlanningSendsTheJobBackToTheQueue) {
  AttachWorkers(2);
  hold_plans_ = true;
  ASSERT_TRUE(Submit(Spec("j", 2)).ok());
  EXPECT_EQ(Job("j").state, JobState::kPlanning);
  Lose("w1");
  hold_plans_ = false;
  Settle();
  EXPECT_EQ(Job("j").state, JobState::kQueued);
  EXPECT_EQ(StateOf("w0"), WorkerState::kIdle);
  Attach("w1", "b");
  EXPECT_EQ(Job("j").state, JobState::kStarting);
  EXPECT_EQ(Job("j").generation, Generation(2));
}

TEST_F(ClusterTest, ARefusalFailsTheJobAsInvalidInputAndFreesAllWorkers) {
  AttachWorkers(2);
  ASSERT_TRUE(Submit(Spec("j", 2)).ok());
  const control::JobKey key{"j", Generation(1)};
  Say("w1", key, 1, control::Phase::kAdmitted);
  cluster_->Update(
      workers_.at("w0").id,
      {.key = key,
       .rank = Rank(0),
       .phase = control::Phase::kRefused,
       .failure = {.error = "no such file",
                   .invalid_input = true,
                   .violations = {{.field = "data.train.path", .fix = "check the path"}}}},
      Moment::Of(clock_));
  Settle();
  ASSERT_NE(Session("w1").Last<control::Abort>(), nullptr);
  EXPECT_EQ(Job("j").state, JobState::kStarting);
  Say("w1", key, 1, control::Phase::kAborted);
  EXPECT_EQ(Job("j").state, JobState::kFailed);
  EXPECT_TRUE(Job("j").invalid_input);
  EXPECT_THAT(Job("j").reason, HasSubstr("no such file"));
  ASSERT_THAT(Job("j").violations, SizeIs(1));
  EXPECT_EQ(Job("j").violations[0].fix, "check the path");
  EXPECT_EQ(StateOf("w0"), WorkerState::kIdle);
  EXPECT_EQ(StateOf("w1"), WorkerState::kIdle);
}

// Otherwise a job of thousands of ranks would be stored again and again while it starts.
TEST_F(ClusterTest, WhatAJobThatStartsWaitsForIsShownAndNotStored) {
  AttachWorkers(2);
  ASSERT_TRUE(Submit(Spec("j", 2)).ok());
  const std::string stored = store_->Load()->jobs.front().reason;
  Say("w0", {"j", Generation(1)}, 0, control::Phase::kAdmitted);
  EXPECT_THAT(Job("j").reason, HasSubstr("waiting for rank 1 (w1) to load"));
  EXPECT_EQ(store_->Load()->jobs.front().reason, stored);
  Say("w1", {"j", Generation(1)}, 1, control::Phase::kAdmitted);
  EXPECT_EQ(store_->Load()->jobs.front().reason, Job("j").reason);
}

TEST_F(ClusterTest, WhatOnlyTimeChangesIsLookedAtOnceInATick) {
  AttachWorkers(1);
  RunJob("j", 1);
  ASSERT_TRUE(Cancel("j").ok());
  Advance(timeouts::kStopGrace - timeouts::kTick / 2);  // the rank does not answer
  Advance(timeouts::kTick / 2);
  EXPECT_EQ(Job("j").state, JobState::kRunning) << "the last look is half a tick ago";
  Advance(timeouts::kTick / 2);
  EXPECT_EQ(Job("j").state, JobState::kCancelled);
}

TEST_F(ClusterTest, ARankThatLoadsForLongIsNotGivenUp) {
  AttachWorkers(1);
  ASSERT_TRUE(Submit(Spec("j", 1)).ok());
  const control::JobKey key{"j", Generation(1)};
  for (absl::Duration waited; waited < absl::Minutes(20); waited += absl::Seconds(4)) {
    Heartbeat("w0", key, 0, 0, "LOAD");
    Advance(absl::Seconds(4));
  }
  EXPECT_EQ(Job("j").state, JobState::kStarting);
  AdmitAll("j");
}

TEST_F(ClusterTest, ALostWorkerFailsTheJobTellingWhereItWasAndWhatTheOthersWaitedFor) {
  AttachWorkers(3);
  const control::JobKey key = RunJob("j", 3, 100);
  Heartbeat("w1", key, 1, 12, "1F3");
  Lose("w1");
  EXPECT_EQ(Job("j").state, JobState::kRunning);
  ASSERT_NE(Session("w0").Last<control::Abort>(), nullptr);
  EXPECT_THAT(Session("w0").Last<control::Abort>()->reason, HasSubstr("worker w1 (rank 1) lost"));
  Say("w0", key, 0, control::Phase::kAborted, "", "RECV 1B3 from pp rank 1");
  Say("w2", key, 2, control::Phase::kAborted, "", "RECV 1F4 from pp rank 1");

  EXPECT_EQ(Job("j").state, JobState::kFailed);
  EXPECT_FALSE(Job("j").invalid_input);
  EXPECT_EQ(Job("j").reason,
            "worker w1 (rank 1) lost: its stream ended; last reported step 12, instruction 1F3; "
            "rank 0 (w0) was waiting for RECV 1B3 from pp rank 1; rank 2 (w2) was waiting for RECV "
            "1F4 from pp rank 1");
  ASSERT_THAT(Job("j").fault, SizeIs(3));
  EXPECT_EQ(Job("j").fault[1].worker, "w1");
  EXPECT_EQ(Job("j").fault[1].instruction, "1F3");
  EXPECT_EQ(Job("j").fault[2].waiting_for, "RECV 1F4 from pp rank 1");
  EXPECT_TRUE(Job("j").fault[1].time.has_value());
  EXPECT_EQ(StateOf("w1"), WorkerState::kLost);
  // The survivors take the next job.
  RunJob("next", 2);
}

TEST_F(ClusterTest, ASilentWorkerFailsTheJobWithinTenSeconds) {
  AttachWorkers(2);
  const control::JobKey key = RunJob("j", 2, 100);
  absl::Duration waited;
  while (Job("j").state == JobState::kRunning && waited < absl::Seconds(20)) {
    Heartbeat("w0", key, 0, 1, "0F0");
    if (Session("w0").Last<control::Abort>() != nullptr)
      Say("w0", key, 0, control::Phase::kAborted);
    Advance(absl::Milliseconds(500));
    waited += absl::Milliseconds(500);
  }
  EXPECT_EQ(Job("j").state, JobState::kFailed);
  EXPECT_LE(waited, absl::Seconds(10));
  EXPECT_THAT(Job("j").reason, HasSubstr("worker w1 (rank 1) lost: nothing heard from it for 5s"));
  EXPECT_EQ(Session("w1").closed->code(), absl::StatusCode::kUnavailable);
}

TEST_F(ClusterTest, ASurvivorThatDoesNotAnswerStaysHeldUntilItDoes) {
  AttachWorkers(3);
  const control::JobKey key = RunJob("j", 3, 100);
  Lose("w1");
  Say("w0", key, 0, control::Phase::kAborted);
  Advance(absl::Seconds(2));
  EXPECT_EQ(Job("j").state, JobState::kFailed);
  EXPECT_THAT(Job("j").reason, HasSubstr("rank 2 (w2) did not answer"));
  EXPECT_EQ(StateOf("w0"), WorkerState::kIdle);
  EXPECT_EQ(StateOf("w2"), WorkerState::kBusy);
  Say("w2", key, 2, control::Phase::kAborted);
  EXPECT_EQ(StateOf("w2"), WorkerState::kIdle);
  EXPECT_NE(Session("w2").Last<control::Acknowledge>(), nullptr);
}

TEST_F(ClusterTest, AWorkerThatComesBackWithAnEndedJobIsToldToAbortAndThenIsIdle) {
  AttachWorkers(2);
  const control::JobKey key = RunJob("j", 2, 100);
  Lose("w1");
  Say("w0", key, 0, control::Phase::kAborted);
  EXPECT_EQ(Job("j").state, JobState::kFailed);
  // The same process, thawed.
  Attach("w1", "a", membership::Hold{{"j", key.generation}, Rank(1)});
  ASSERT_NE(Session("w1").Last<control::Abort>(), nullptr);
  EXPECT_EQ(StateOf("w1"), WorkerState::kBusy);
  Say("w1", key, 1, control::Phase::kAborted);
  EXPECT_NE(Session("w1").Last<control::Acknowledge>(), nullptr);
  EXPECT_EQ(StateOf("w1"), WorkerState::kIdle);
}

TEST_F(ClusterTest, TheFirstResultThatIsNotFiniteIsAWarningOfTheJobOnce) {
  AttachWorkers(1);
  const control::JobKey key = RunJob("j", 1, 100);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (int step = 1; step <= 3; ++step) {
    cluster_->Report("w0", "a",
                     {.key = key,
                      .sequence = step,
                      .step = StepId(step),
                      .step_seconds = 1,
                      .loss = step == 1 ? 4.0 : nan},
                     workers_.at("w0").session);
    Advance(absl::Milliseconds(50));
    EXPECT_THAT(Job("j").notices, SizeIs(step == 1 ? 0 : 1));
  }
  EXPECT_THAT(Job("j").notices[0],
              HasSubstr("the loss of step 2 is not finite, so do not trust the weights"));
  EXPECT_EQ(Job("j").last_step->step, StepId(3));
}

TEST_F(ClusterTest, ReportsOfAnotherGenerationOrRankAreRefused) {
  AttachWorkers(2);
  const control::JobKey key = RunJob("j", 2, 100);
  Report("w0", {"j", Generation(7)}, 0, 1);
  Report("w1", key, 0, 1);  // not its rank
  Report("w1", key, 1, 1);
  EXPECT_THAT(StoredSteps("j"), IsEmpty());
  Report("w0", key, 0, 1);
  EXPECT_THAT(StoredSteps("j"), ElementsAre(1));
}

TEST_F(ClusterTest, StepsThatRankZeroReportedSurviveAFault) {
  AttachWorkers(2);
  const control::JobKey key = RunJob("j", 2, 100);
  Report("w0", key, 0, 1);
  EXPECT_THAT(StoredSteps("j"), IsEmpty());
  Lose("w1");
  Say("w0", key, 0, control::Phase::kAborted);
  EXPECT_THAT(StoredSteps("j"), ElementsAre(1));
}

TEST_F(ClusterTest, AnAdmittedRankThatDidNotHearTheStartIsToldAgain) {
  AttachWorkers(1);
  const control::JobKey key = RunJob("j", 1, 100);
  Session("w0").commands.clear();
  Say("w0", key, 0, control::Phase::kAdmitted);
  EXPECT_NE(Session("w0").Last<control::Start>(), nullptr);
}

TEST_F(ClusterTest, RendezvousIsOpenForTheLiveGenerationOnly) {
  AttachWorkers(1);
  const control::JobKey key = RunJob("j", 1, 100);
  EXPECT_TRUE(rendezvous_->Set("j", key.generation, "k", "v").ok());
  EXPECT_EQ(rendezvous_->Set("j", Generation(9), "k", "v").code(), absl::StatusCode::kAborted);
  Say("w0", key, 0, control::Phase::kFailed, "boom");
  EXPECT_EQ(rendezvous_->Set("j", key.generation, "k", "v").code(), absl::StatusCode::kNotFound);
}

TEST_F(ClusterTest, RendezvousWaitsEndAsSoonAsTheJobIsStopped) {
  AttachWorkers(2);
  ASSERT_TRUE(Submit(Spec("j", 2)).ok());
  absl::StatusOr<Rendezvous::Values> found = absl::UnknownError("still waiting");
  rendezvous_->Wait("j", Generation(1), {"endpoint of rank 1"}, absl::InfiniteDuration(),
                    [&](absl::StatusOr<Rendezvous::Values> values) { found = std::move(values); });
  Lose("w1");
  EXPECT_EQ(Job("j").state, JobState::kStarting);
  EXPECT_EQ(found.status().code(), absl::StatusCode::kAborted);
}

TEST_F(ClusterTest, BulkStreamsNeedAnAttachedIncarnation) {
  AttachWorkers(1);
  EXPECT_TRUE(cluster_->CheckAttached("w0", "a").ok());
  EXPECT_EQ(cluster_->CheckAttached("w0", "b").code(), absl::StatusCode::kFailedPrecondition);
  Detach("w0");
  EXPECT_EQ(cluster_->CheckAttached("w0", "a").code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ClusterTest, LogLinesAreKeptForJobsThatExist) {
  AttachWorkers(1);
  RunJob("j", 1);
  cluster_->AddLog({.job = "j", .worker = "w0", .text = "hello"});
  cluster_->AddLog({.job = "nobody", .worker = "w0", .text = "lost"});
  cluster_->AddLog({.job = "j", .worker = "w0", .text = std::string(5000, 'x')});
  cluster_->AddLog({.job = "j", .worker = "stranger", .text = "never held a rank of it"});
  Advance(absl::Milliseconds(50));
  const auto lines = store_->ReadLogs(Job("j").id, 0, 10).value();
  ASSERT_THAT(lines, SizeIs(2));
  EXPECT_EQ(lines[0].text, "hello");
  EXPECT_THAT(lines[1].text, SizeIs(2048));
}

TEST_F(ClusterTest, LogLinesThatComeAfterTheEndOfAJobAreKept) {
  AttachWorkers(1);
  const control::JobKey key = RunJob("j", 1);
  Say("w0", key, 0, control::Phase::kFailed, "boom");
  ASSERT_EQ(Job("j").state, JobState::kFailed);
  Advance(absl::Seconds(1));
  cluster_->AddLog({.job = "j", .worker = "w0", .text = "last words"});
  Advance(absl::Milliseconds(50));
  EXPECT_THAT(store_->ReadLogs(Job("j").id, 0, 10).value(), SizeIs(1));
}

TEST_F(ClusterTest, RanksGetWorkersByMeasuredLinks) {
  for (const char* host : {"a", "b", "c"}) {
    host_ = host;
    Attach(absl::StrCat("on-", host));
  }
  auto measured = std::make_shared<profile::Profile>();
  measured->AddMessage(profile::KeyOfMessage(false, 1024), {.bytes = 1024, .seconds = 1e-4});
  for (const auto& [from, to] : {std::pair("a", "b"), std::pair("b", "a")}) {
    measured->AddLink(profile::KeyOfLink(from, to, 1024), {.bytes = 1024, .seconds = 1e-2});
  }
  profile_ = std::move(measured);
  hold_plans_ = true;
  config::JobSpec spec = Spec("j", 3);
  spec.parallelism.schedule = "1f1b";
  ASSERT_TRUE(Submit(spec).ok());
  ASSERT_THAT(plans_, SizeIs(1));
  cluster_->Planned(plans_[0].job_id, plans_[0].generation,
                    plan::MakePlan(plans_[0].spec, plans_[0].options), Moment::Of(clock_));
  Settle();
  EXPECT_THAT(WorkersOf(Job("j")), ElementsAre("on-a", "on-c", "on-b"));
  EXPECT_EQ(Job("j").transitions.back().reason, "preparing 3 ranks, placed by measured links");
  EXPECT_EQ(Session("on-b").Last<control::Prepare>()->rank, Rank(2));
}

}  // namespace
}  // namespace takt::job
