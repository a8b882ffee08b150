// SPDX-License-Identifier: Apache-2.0
// Tests the agent with a scripted coordinator and a scripted runner. The threads are real; there is
// no wire and no clock.
#include "worker/session/agent.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::session {
namespace {

const control::JobKey kJob{"kjv", Generation(1)};
constexpr absl::Duration kPatience = absl::Seconds(60);

// The test tells the runner here what to do, and reads here what the runner was asked.
struct Script {
  absl::Mutex mutex;
  absl::Status run;               // the result of Run
  absl::Status poisoned;          // the result of Poisoned
  bool hang_in_prepare = false;   // until Stop is called
  bool hang_in_run = false;       // until Stop or Halt is called
  bool hang_in_teardown = false;  // until the test sets it to false
  int steps = 0;                  // the steps that Run reports
  bool halted = false;
  bool stopped = false;
};

class FakeRunner final : public RankRunner {
 public:
  explicit FakeRunner(std::shared_ptr<Script> script) : script_(std::move(script)) {}
  ~FakeRunner() override {
    absl::MutexLock lock(&script_->mutex);
    const auto released = [this] { return !script_->hang_in_teardown; };
    script_->mutex.Await(absl::Condition(&released));
  }
  absl::StatusOr<control::Resumed> Prepare() override {
    absl::MutexLock lock(&script_->mutex);
    const auto free = [this] { return !script_->hang_in_prepare || script_->stopped; };
    script_->mutex.Await(absl::Condition(&free));
    if (script_->stopped) return absl::AbortedError("stopped");
    return control::Resumed();
  }
  absl::StatusOr<RunEnd> Run(const std::function<void(Report)>& report) override {
    for (int step = 1; step <= script_->steps; ++step)
      report(control::RankStepReport{.step = StepId(step)});
    absl::MutexLock lock(&script_->mutex);
    const auto free = [this] {
      return !script_->hang_in_run || script_->stopped || script_->halted;
    };
    script_->mutex.Await(absl::Condition(&free));
    if (script_->stopped) return absl::AbortedError("stopped");
    if (!script_->run.ok()) return script_->run;
    return script_->halted ? RunEnd::kHalted : RunEnd::kLastStep;
  }
  void Halt(bool) override {
    absl::MutexLock lock(&script_->mutex);
    script_->halted = true;
  }
  void Stop(const absl::Status&) override {
    absl::MutexLock lock(&script_->mutex);
    script_->stopped = true;
  }
  absl::Status Poisoned() override {
    absl::MutexLock lock(&script_->mutex);
    return script_->poisoned;
  }
  control::RankStatus Status() const override {
    return {.last_step = StepId(3), .waiting_for = "RECV 0F1 from pp rank 0"};
  }

 private:
  const std::shared_ptr<Script> script_;
};

class FakeLink final : public CoordinatorLink {
 public:
  void Send(const control::JobUpdate& update) override {
    absl::MutexLock lock(&mutex_);
    updates_.push_back(update);
  }
  void Send(const control::CheckpointCommitted& answer) override {
    absl::MutexLock lock(&mutex_);
    answers_.push_back(answer);
  }
  void Send(const control::RankDescription& description) override {
    absl::MutexLock lock(&mutex_);
    descriptions_.push_back(description);
  }
  // Waits for the n-th description (0-based).
  control::RankDescription Description(std::size_t n) {
    absl::MutexLock lock(&mutex_);
    const auto there = [&] { return descriptions_.size() > n; };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&there), kPatience)) return {};
    return descriptions_[n];
  }
  bool SendLeaving(const std::string&) override { return attached; }
  void SendHeartbeat() override {}
  std::atomic<bool> attached = false;
  std::size_t NumAnswers() {
    absl::MutexLock lock(&mutex_);
    return answers_.size();
  }
  // Waits for the n-th update (0-based).
  control::JobUpdate Update(std::size_t n) {
    absl::MutexLock lock(&mutex_);
    const auto there = [&] { return updates_.size() > n; };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&there), kPatience))
      return control::JobUpdate{.failure = {.error = "no update"}};
    return updates_[n];
  }

 private:
  absl::Mutex mutex_;
  std::vector<control::JobUpdate> updates_;
  std::vector<control::CheckpointCommitted> answers_;
  std::vector<control::RankDescription> descriptions_;
};

// A steady clock that the test moves while the agent's thread reads it.
class SharedClock final : public Clock {
 public:
  absl::Time Now() const override { return absl::UnixEpoch() + absl::Nanoseconds(nanos_.load()); }
  std::int64_t SteadyNanos() const override { return nanos_.load(); }
  void Advance(absl::Duration by) { nanos_ += absl::ToInt64Nanoseconds(by); }

 private:
  std::atomic<std::int64_t> nanos_ = 0;
};

class AgentTest : public ::testing::Test {
 protected:
  void StartAgent() {
    agent_ = std::make_unique<Agent>(AgentOptions{
        .runner_factory =
            [this](control::Assignment) { return std::make_unique<FakeRunner>(script_); },
        .commit = [this](const control::CommitCheckpoint& request) { return commit_(request); },
        .clock = &clock_,
        .on_job_over = [this](const std::string& job) { on_job_over_(job); },
        .forget_copies = [this](const std::string& job) { forget_copies_(job); }});
    thread_ = std::thread([this] { exit_code_ = agent_->Run(link_); });
  }
  void Prepare() {
    agent_->Prepare(kJob, Rank(0), [] { return control::Assignment{.key = kJob}; });
  }
  // Returns once the agent has seen that it is idle. Only then its waits begin.
  void FailARank(bool goes_on) {
    script_->run = absl::UnavailableError("peer left");
    StartAgent();
    Prepare();
    link_.Update(0);
    agent_->Start(kJob);
    EXPECT_EQ(link_.Update(1).phase, control::Phase::kFailed);
    agent_->Acknowledge(kJob, /*keeps_copies=*/goes_on);
    while (agent_->held().has_value()) std::this_thread::yield();
  }
  // Joins unless the test has joined already.
  void TearDown() override {
    if (!thread_.joinable()) return;
    agent_->Leave();
    thread_.join();
    EXPECT_EQ(exit_code_, kExitLeft);
  }

  std::shared_ptr<Script> script_ = std::make_shared<Script>();
  std::function<absl::Status(const control::CommitCheckpoint&)> commit_;
  std::function<void(const std::string&)> on_job_over_ = [](const std::string&) {};
  std::function<void(const std::string&)> forget_copies_ = [](const std::string&) {};
  SharedClock clock_;
  FakeLink link_;
  std::unique_ptr<Agent> agent_;
  std::thread thread_;
  int exit_code_ = -1;
};

TEST_F(AgentTest, ACheckpointIsWithdrawnOnlyWhileTheCoordinatorIsAway) {
  StartAgent();
  agent_->Attached();
  agent_->outbox().BeginJob(kJob, Rank(0));
  agent_->outbox().AddReport(control::CheckpointReport{.step = StepId(5)});
  EXPECT_FALSE(agent_->WithdrawCheckpoint(StepId(5), "replaced"));
  agent_->Detached();
  EXPECT_TRUE(agent_->WithdrawCheckpoint(StepId(5), "replaced"));
}

TEST_F(AgentTest, FinishesOnceEveryReportIsAcknowledged) {
  script_->steps = 3;
  StartAgent();
  Prepare();
  EXPECT_EQ(link_.Update(0).phase, control::Phase::kAdmitted);
  agent_->Start(kJob);
  for (int step = 1; step <= 3; ++step) {
    const auto item = agent_->outbox().Next();
    EXPECT_EQ(std::get<control::RankStepReport>(*item).step, StepId(step));
    agent_->AcknowledgeReports(kJob, step);
  }
  EXPECT_EQ(link_.Update(1).phase, control::Phase::kFinished);
}

TEST_F(AgentTest, DescribesTheRankThatItHolds) {
  script_->steps = 3;
  StartAgent();
  Prepare();
  link_.Update(0);
  agent_->Start(kJob);
  for (int step = 1; step <= 3; ++step) agent_->outbox().Next();
  agent_->AcknowledgeReports(kJob, 2);
  agent_->Describe({.key = {"another", Generation(1)}}, 7);
  agent_->Describe({.key = kJob}, 7);
  const control::RankDescription description = link_.Description(0);
  EXPECT_EQ(description.key, kJob);
  EXPECT_EQ(description.epoch, 7);
  EXPECT_EQ(description.acknowledged_step, StepId(2));
  EXPECT_EQ(description.assignment_hash.size(), 32u);
  EXPECT_EQ(description.assignment, "");

  agent_->Describe({.key = kJob, .whole = true}, 7);
  const control::RankDescription whole = link_.Description(1);
  EXPECT_EQ(whole.assignment_hash, description.assignment_hash);
  EXPECT_NE(whole.assignment, "");

  agent_->Adopted(kJob);
  EXPECT_EQ(std::get<control::RankStepReport>(*agent_->outbox().Next()).step, StepId(3));
}

TEST_F(AgentTest, AWrongAssignmentIsRefusedWithItsError) {
  StartAgent();
  agent_->Prepare(kJob, Rank(0), []() -> absl::StatusOr<control::Assignment> {
    return absl::InvalidArgumentError("bad program");
  });
  const control::JobUpdate update = link_.Update(0);
  EXPECT_EQ(update.phase, control::Phase::kRefused);
  EXPECT_TRUE(update.failure.invalid_input);
  EXPECT_EQ(update.failure.error, "bad program");
}

TEST_F(AgentTest, ARunErrorIsToldWithTheRunnersStatus) {
  script_->run = absl::UnavailableError("peer left");
  StartAgent();
  Prepare();
  link_.Update(0);
  agent_->Start(kJob);
  const control::JobUpdate update = link_.Update(1);
  EXPECT_EQ(update.phase, control::Phase::kFailed);
  EXPECT_EQ(update.status.waiting_for, "RECV 0F1 from pp rank 0");
}

TEST_F(AgentTest, AbortFreesARankThatHangsInPrepareOrRunAndTheNextJobIsTaken) {
  for (const bool in_prepare : {true, false}) {
    script_ = std::make_shared<Script>();
    (in_prepare ? script_->hang_in_prepare : script_->hang_in_run) = true;
    FakeLink link;
    Agent agent({.runner_factory = [this](control::Assignment) {
      return std::make_unique<FakeRunner>(script_);
    }});
    std::thread thread([&] { agent.Run(link); });
    agent.Prepare(kJob, Rank(0), [] { return control::Assignment{.key = kJob}; });
    std::size_t n = 0;
    if (!in_prepare) {
      EXPECT_EQ(link.Update(n++).phase, control::Phase::kAdmitted);
      agent.Start(kJob);
    }
    agent.Abort(kJob, "worker w2 died");
    const control::JobUpdate update = link.Update(n++);
    EXPECT_EQ(update.phase, control::Phase::kAborted);
    EXPECT_EQ(update.failure.error, "CANCELLED: worker w2 died");
    agent.Acknowledge(kJob);

    script_ = std::make_shared<Script>();
    const control::JobKey next{"kjv", Generation(2)};
    agent.Prepare(next, Rank(0), [&] { return control::Assignment{.key = next}; });
    EXPECT_EQ(link.Update(n).phase, control::Phase::kAdmitted);
    EXPECT_EQ(link.Update(n).key, next);
    agent.Leave();
    thread.join();
  }
}

TEST_F(AgentTest, APrepareThatComesAgainLeavesTheNextJobItsAssignment) {
  script_->hang_in_teardown = true;
  StartAgent();
  Prepare();
  EXPECT_EQ(link_.Update(0).phase, control::Phase::kAdmitted);
  agent_->Abort(kJob, "over");
  const control::JobKey next{"kjv", Generation(2)};
  agent_->Prepare(next, Rank(0), [next] { return control::Assignment{.key = next}; });
  Prepare();
  {
    absl::MutexLock lock(&script_->mutex);
    script_->mutex.Await(absl::Condition(&script_->stopped));
    script_->stopped = false;
    script_->hang_in_teardown = false;
  }
  EXPECT_EQ(link_.Update(1).phase, control::Phase::kAborted);
  EXPECT_EQ(link_.Update(2).phase, control::Phase::kAdmitted);
  EXPECT_EQ(link_.Update(2).key, next);
}

TEST_F(AgentTest, HaltsTheRunAndTellsItAsTheEnd) {
  script_->hang_in_run = true;
  StartAgent();
  Prepare();
  link_.Update(0);
  agent_->Start(kJob);
  agent_->Halt(kJob, "paused");
  EXPECT_EQ(link_.Update(1).phase, control::Phase::kHalted);
}

TEST_F(AgentTest, AJobIsOverTenMinutesAfterItsRankEnded) {
  absl::Notification over;
  on_job_over_ = [&](const std::string& job) {
    EXPECT_EQ(job, kJob.job);
    over.Notify();
  };
  FailARank(/*goes_on=*/false);
  EXPECT_FALSE(over.HasBeenNotified());
  clock_.Advance(absl::Minutes(10));
  over.WaitForNotification();
}

TEST_F(AgentTest, CopiesOfAJobThatWaitsAreKeptForAnHour) {
  absl::Notification over, forgotten;
  on_job_over_ = [&](const std::string&) { over.Notify(); };
  forget_copies_ = [&](const std::string& job) {
    EXPECT_EQ(job, kJob.job);
    forgotten.Notify();
  };
  FailARank(/*goes_on=*/true);
  clock_.Advance(absl::Minutes(10));
  over.WaitForNotification();
  EXPECT_FALSE(forgotten.HasBeenNotified());
  clock_.Advance(absl::Hours(1));
  forgotten.WaitForNotification();
}

TEST_F(AgentTest, AStuckTeardownEndsTheWorker) {
  script_->hang_in_run = true;
  script_->hang_in_teardown = true;
  StartAgent();
  Prepare();
  link_.Update(0);
  agent_->Start(kJob);
  agent_->Abort(kJob, "x");
  {
    absl::MutexLock lock(&script_->mutex);
    script_->mutex.Await(absl::Condition(&script_->stopped));
  }
  clock_.Advance(RankLifecycle::kTeardownTimeout);
  thread_.join();
  EXPECT_EQ(exit_code_, kExitStuck);
  absl::MutexLock lock(&script_->mutex);
  script_->hang_in_teardown = false;
}

TEST_F(AgentTest, AStuckRankEndsTheWorkerAtOnce) {
  StartAgent();
  agent_->Stuck("an abort hangs");
  thread_.join();
  EXPECT_EQ(exit_code_, kExitStuck);
}

TEST_F(AgentTest, APoisonedDeviceEndsTheWorkerOnceTheFailureIsStored) {
  script_->run = script_->poisoned = absl::InternalError("the GPU has fallen off the bus");
  StartAgent();
  Prepare();
  link_.Update(0);
  agent_->Start(kJob);
  const control::JobUpdate failed = link_.Update(1);
  EXPECT_EQ(failed.phase, control::Phase::kFailed);
  EXPECT_EQ(failed.failure.error, script_->run.ToString());
  agent_->Acknowledge(kJob);
  thread_.join();
  EXPECT_EQ(exit_code_, kExitPoisoned);
}

// While a commit hangs, commands are still obeyed, and the worker does not leave before the commit
// ends.
TEST_F(AgentTest, CommitsBesideEverythingElseAndBeforeItLeaves) {
  absl::Notification begun, free;
  commit_ = [&](const control::CommitCheckpoint& request) {
    begun.Notify();
    free.WaitForNotification();
    return request.manifest == "good" ? absl::OkStatus() : absl::DataLossError("short file");
  };
  StartAgent();
  Prepare();
  link_.Update(0);
  agent_->Commit({.key = kJob, .step = StepId(4), .manifest = "good"});
  begun.WaitForNotification();
  agent_->Abort(kJob, "cancelled");
  EXPECT_EQ(link_.Update(1).phase, control::Phase::kAborted);
  EXPECT_EQ(link_.NumAnswers(), 0u);
  agent_->Acknowledge(kJob);
  agent_->Leave();
  free.Notify();
  thread_.join();
  EXPECT_EQ(exit_code_, kExitLeft);
  EXPECT_EQ(link_.NumAnswers(), 1u);
}

TEST_F(AgentTest, LeavesOnceItsJobIsHaltedAndAcknowledged) {
  script_->hang_in_run = true;
  link_.attached = true;
  StartAgent();
  Prepare();
  link_.Update(0);
  agent_->Start(kJob);
  agent_->Leave();
  agent_->Halt(kJob, "worker w0 leaves");
  EXPECT_EQ(link_.Update(1).phase, control::Phase::kHalted);
  agent_->Acknowledge(kJob);
  thread_.join();
  EXPECT_EQ(exit_code_, kExitLeft);
}

TEST_F(AgentTest, LeavesAfterItsTimeoutThoughNobodyHaltedTheJob) {
  script_->hang_in_run = true;
  link_.attached = true;
  StartAgent();
  Prepare();
  link_.Update(0);
  agent_->Start(kJob);
  agent_->Leave();
  agent_->Attached();  // not answered by an update; a new Prepare is refused once Leave was handled
  agent_->Prepare({"other", Generation(1)}, Rank(0), [] { return control::Assignment(); });
  EXPECT_EQ(link_.Update(1).phase, control::Phase::kRefused);
  clock_.Advance(absl::Minutes(1));
  EXPECT_EQ(link_.Update(2).phase, control::Phase::kFailed);
  thread_.join();
  EXPECT_EQ(exit_code_, kExitLeft);
}

TEST_F(AgentTest, ShowsWhatItHoldsForHelloAndHeartbeats) {
  StartAgent();
  EXPECT_FALSE(agent_->held().has_value());
  Prepare();
  link_.Update(0);
  agent_->Attached();  // answered by the admission again; by then held() shows the first one
  link_.Update(1);
  const auto held = agent_->held();
  ASSERT_TRUE(held.has_value());
  EXPECT_EQ(held->key, kJob);
  EXPECT_EQ(held->status.last_step, StepId(3));
}

}  // namespace
}  // namespace takt::session
