// SPDX-License-Identifier: Apache-2.0
// The worker's session. It applies what RankLifecycle decides. It owns the one thread that decides,
// the job's thread and the outbox of reports. It knows the coordinator only as a CoordinatorLink.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "common/base/steady_cond_var.h"
#include "common/control/attachment.h"
#include "common/control/job_key.h"
#include "common/control/rank_status.h"
#include "worker/session/bulk_outbox.h"
#include "worker/session/checkpoint_committer.h"
#include "worker/session/job_thread.h"
#include "worker/session/rank_description.h"
#include "worker/session/rank_lifecycle.h"
#include "worker/session/task_thread.h"

namespace takt::session {

// The control stream to the coordinator, as the agent sees it. Thread-safe.
class CoordinatorLink {
 public:
  virtual ~CoordinatorLink() = default;
  // Puts the update on the control stream if the stream is up, and drops it otherwise:
  // Agent::Attached sends it again. Never blocks.
  virtual void Send(const control::JobUpdate& update) = 0;
  // Like Send for updates. The coordinator asks again for an answer that was dropped.
  virtual void Send(const control::CheckpointCommitted& answer) = 0;
  virtual void Send(const control::RankDescription& description) = 0;
  // Tells the coordinator that this worker was asked to leave. Returns false if the stream is down,
  // so that the coordinator was not told.
  virtual bool SendLeaving(const std::string& reason) = 0;
  // Sends Agent::held at once instead of waiting until the next heartbeat is due. Never blocks.
  virtual void SendHeartbeat() = 0;
};

struct AgentOptions {
  RankRunnerFactory runner_factory;
  // The committer calls these (CheckpointCommitter).
  CommitAction commit, retain;
  std::string checkpoint_root = {};  // the directories of jobs lie under this one
  // How long a worker that was asked to leave waits for its job to be halted.
  absl::Duration leave_timeout = absl::Minutes(1);
  const Clock* clock = &Clock::Real();
  // Called when metrics of `job` need not be shown any more: its last rank on this worker ended
  // keep_job ago, or a rank of another generation or job takes its place. May be empty.
  std::function<void(const std::string& job)> on_job_over;
  absl::Duration keep_job = absl::Minutes(10);
  // Frees the copies of the job's state in memory. Called when the coordinator says that the job
  // has ended, and keep_job after its last rank on this worker ended; keep_copies after it, if the
  // coordinator has said that the job goes on. May be empty.
  std::function<void(const std::string& job)> forget_copies;
  absl::Duration keep_copies = absl::Hours(1);  // as long as the coordinator reserves the worker
};

// Hello and heartbeats tell that this worker holds a rank.
struct Holding {
  control::JobKey key;
  Rank rank;
  control::RankStatus status;
};

// Thread-safe. One thread calls Run; the other calls only post an event to that thread, or read.
class Agent {
 public:
  explicit Agent(AgentOptions options);
  ~Agent();

  // Runs until the worker should exit, and returns the exit code. link: borrowed for the call. A
  // commit that is in progress is completed first. After kExitStuck and kExitPoisoned the caller
  // must end the process without destroying the agent, because one of its threads may never end.
  int Run(CoordinatorLink& link);

  // Commands from the coordinator.
  void Prepare(control::JobKey key, Rank rank, DecodeAssignment decode);
  void Start(control::JobKey key);
  void Halt(control::JobKey key, std::string reason, bool in_memory = false);
  void Abort(control::JobKey key, std::string reason);
  void Acknowledge(control::JobKey key, bool keeps_copies = false);
  void AcknowledgeReports(const control::JobKey& key, std::int64_t sequence);
  void Commit(control::CommitCheckpoint request);
  // Describes the rank if it is held. epoch: the highest that the worker has seen.
  void Describe(const control::Describe& request, std::int64_t epoch);
  // Another coordinator has taken the rank over, so it gets what is not acknowledged.
  void Adopted(const control::JobKey& key);
  // Attached: the control stream is up (again). Detached: it is down.
  void Attached();
  void Detached();
  // The process got SIGTERM. A second call makes the worker leave without waiting for the job.
  void Leave();
  // Reports that a thread will never end: Run returns kExitStuck.
  void Stuck(std::string reason);
  // Asks for a sign of life: the deciding thread calls `answer`.
  void Ask(std::function<void()> answer);

  std::optional<Holding> held() const;
  BulkOutbox& outbox() { return outbox_; }
  // While the coordinator is away, withdraws the report of a checkpoint that it has not
  // acknowledged, so that the files may be removed. Returns whether it did.
  bool WithdrawCheckpoint(StepId step, const std::string& error) {
    return away_ && outbox_.Withdraw(step, error);
  }

 private:
  void Post(std::function<Effects()> event);
  // Returns the next event, or null when it is time to look at the clock.
  std::function<Effects()> NextEvent();
  void Apply(const Effects& effects, CoordinatorLink& link);
  void Build(const control::JobKey& key);
  JobThread::Callbacks ThreadCallbacks();
  control::RankStatus ThreadStatus() const;
  Effects CheckFlushed();
  void DescribeHeld(bool whole, std::int64_t epoch);
  void ForgetOldJob();
  absl::Duration Now() const { return absl::Nanoseconds(options_.clock->SteadyNanos()); }

  const AgentOptions options_;
  BulkOutbox outbox_;
  std::atomic<bool> away_ = true;  // the control stream is down

  mutable absl::Mutex mutex_;
  SteadyCondVar posted_;
  std::deque<std::function<Effects()>> events_ ABSL_GUARDED_BY(mutex_);
  // `held()` returns it. It is a copy of what lifecycle_ has, so that readers never wait for a
  // decision.
  std::optional<std::pair<control::JobKey, Rank>> shown_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<JobThread> thread_ ABSL_GUARDED_BY(mutex_);
  SharedPart shared_ ABSL_GUARDED_BY(mutex_);  // of the held rank; empty until it is read

  // Only the deciding thread uses these.
  RankLifecycle lifecycle_;
  std::optional<std::pair<control::JobKey, DecodeAssignment>> decode_;  // of the next rank
  std::string last_job_;    // empty: there was none, or it is over
  std::string copied_job_;  // whose copies may be kept; empty: nobody's
  bool goes_on_ = false;    // copied_job_, without this worker until now
  absl::Duration idle_since_;
  std::optional<int> exit_code_;
  // While Run runs:
  CoordinatorLink* link_ = nullptr;
  std::unique_ptr<CheckpointCommitter> committer_;
  std::unique_ptr<TaskThread> describer_;  // reads directories of checkpoints
};

}  // namespace takt::session
