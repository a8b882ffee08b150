// SPDX-License-Identifier: Apache-2.0
// The worker's session: applies what HeldJob decides. Owns the one thread that decides, the job's
// thread and the outbox of reports; knows the coordinator only as a CoordinatorLink.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "common/control/attachment.h"
#include "common/control/job_key.h"
#include "common/control/rank_status.h"
#include "worker/session/bulk_outbox.h"
#include "worker/session/committer.h"
#include "worker/session/held_job.h"
#include "worker/session/job_thread.h"

namespace takt::session {

// Thread-safe.
class CoordinatorLink {
 public:
  virtual ~CoordinatorLink() = default;
  // Puts it on the control stream if that is up; drops it if not: Agent::Attached tells again.
  // Never blocks.
  virtual void Send(const control::JobUpdate& update) = 0;
  // As Send for updates; the coordinator asks again for what was dropped.
  virtual void Send(const control::CheckpointCommitted& answer) = 0;
  // That this worker was asked to leave. False: the stream is down, nobody was told.
  virtual bool SendLeaving(const std::string& reason) = 0;
  // Sends Agent::held now and not only when it is due. Never blocks.
  virtual void SendHeartbeat() = 0;
};

struct AgentOptions {
  RankRunnerFactory runner_factory;
  std::function<absl::Status(const control::CommitCheckpoint&)> commit;
  // How long a worker that was asked to leave waits for its job to be halted.
  absl::Duration leave_timeout = absl::Minutes(1);
  const Clock* clock = &Clock::Real();
  // Nothing of `job` is shown any more: its last rank here ended keep_job ago, or another rank
  // takes its place (for metrics); may be empty.
  std::function<void(const std::string& job)> on_job_over;
  absl::Duration keep_job = absl::Minutes(10);
  BulkOutboxOptions outbox;
};

// What is held, for Hello and heartbeats.
struct Holding {
  control::JobKey key;
  Rank rank;
  control::RankStatus status;
};

// Thread-safe; Run on one thread. Everything else only posts to that thread or reads.
class Agent {
 public:
  explicit Agent(AgentOptions options);
  ~Agent();

  // Until the worker should exit; the exit code. link: borrowed for the call. What is being
  // committed then is committed first. After kExitStuck and kExitPoisoned the caller must end the
  // process without destroying the agent: a thread hangs, or may.
  int Run(CoordinatorLink& link);

  // Commands from the coordinator.
  void Prepare(control::JobKey key, Rank rank, DecodeAssignment decode);
  void Start(control::JobKey key);
  void Halt(control::JobKey key, std::string reason);
  void Abort(control::JobKey key, std::string reason);
  void Acknowledge(control::JobKey key);
  void AcknowledgeReports(const control::JobKey& key, std::int64_t sequence);
  void Commit(control::CommitCheckpoint request);
  // The control stream is up (again); it is down; the coordinator refuses this worker for good.
  void Attached();
  void Detached();
  void Refused(std::string reason);
  // SIGTERM; a second one, which waits for nothing.
  void Leave();
  // A thread hangs for good: Run returns kExitStuck.
  void Stuck(std::string reason);
  // A sign of life: `answer` is called by the thread that decides.
  void Ask(std::function<void()> answer);

  std::optional<Holding> held() const;
  BulkOutbox& outbox() { return outbox_; }

 private:
  void Post(std::function<Effects()> event);
  // The next event, or nothing when it is time to look at the clock.
  std::function<Effects()> NextEvent();
  void Apply(const Effects& effects, CoordinatorLink& link);
  void Build(const control::JobKey& key);
  JobThread::Callbacks ThreadCallbacks();
  control::RankStatus ThreadStatus() const;
  Effects CheckFlushed();
  void ForgetOldJob();
  absl::Duration Now() const { return absl::Nanoseconds(options_.clock->SteadyNanos()); }

  const AgentOptions options_;
  BulkOutbox outbox_;

  mutable absl::Mutex mutex_;
  std::deque<std::function<Effects()>> events_ ABSL_GUARDED_BY(mutex_);
  // What `held()` shows; a copy of held_job_'s, so that readers never wait for a decision.
  std::optional<std::pair<control::JobKey, Rank>> shown_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<JobThread> thread_ ABSL_GUARDED_BY(mutex_);

  // Of the deciding thread.
  HeldJob held_job_;
  std::optional<std::pair<control::JobKey, DecodeAssignment>> decode_;  // of the newest Prepare
  std::string last_job_;  // empty: there was none, or it is over
  absl::Duration idle_since_;
  std::optional<int> exit_code_;
  std::unique_ptr<Committer> committer_;  // while Run runs
};

}  // namespace takt::session
