// SPDX-License-Identifier: Apache-2.0
// The thread that takes one rank through its life: it decodes, prepares, waits for the start, runs,
// waits for the release and tears down.
#pragma once

#include <functional>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/control/assignment.h"
#include "common/control/attachment.h"
#include "common/control/rank_status.h"
#include "worker/session/rank_runner.h"

namespace takt::session {

// Decodes and checks an assignment that came from the wire. It runs on the job's thread, because
// decoding a large program takes time.
using DecodeAssignment = std::function<absl::StatusOr<control::Assignment>()>;

// Thread-safe. The destructor releases the runner and joins the thread, so it may block as long as
// the runner's teardown does.
class JobThread {
 public:
  // Called on the job's thread, in this order. Each but `report` is called at most once; `gone` is
  // always called, and last. `report` is used as RankRunner::Run says. `poisoned` gets what
  // RankRunner::Poisoned returns, if that is not OK.
  struct Callbacks {
    std::function<void(absl::StatusOr<control::Resumed>)> built;
    std::function<void(Report)> report;
    std::function<void(absl::StatusOr<RunEnd>, control::RankStatus)> run_ended;
    std::function<void(absl::Status)> poisoned;
    std::function<void()> gone;
  };

  JobThread(DecodeAssignment decode, RankRunnerFactory factory, Callbacks callbacks);
  ~JobThread();

  // Precondition: `built` was called without an error.
  void Run();
  // Halts the runner (RankRunner::Halt) as soon as there is one.
  void Halt(bool in_memory);
  // Ends whatever the runner waits for, and releases it.
  void Stop(const absl::Status& reason);
  // Says that the runner is not needed any more.
  void Release();
  // Returns the runner's status. Once the runner is gone, returns its last known status.
  control::RankStatus Status() const;

 private:
  void Main(const DecodeAssignment& decode, const RankRunnerFactory& factory);
  // Returns null, after passing on the error, if there is nothing to run.
  RankRunner* Build(const DecodeAssignment& decode, const RankRunnerFactory& factory);
  bool ToldLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return run_ || released_; }

  const Callbacks callbacks_;
  mutable absl::Mutex mutex_;
  // The job's thread makes and destroys it; other threads use it under the mutex.
  std::unique_ptr<RankRunner> runner_ ABSL_GUARDED_BY(mutex_);
  control::RankStatus last_status_ ABSL_GUARDED_BY(mutex_);
  absl::Status stop_reason_ ABSL_GUARDED_BY(mutex_);
  bool halt_ ABSL_GUARDED_BY(mutex_) = false;
  bool halt_in_memory_ ABSL_GUARDED_BY(mutex_) = true;  // of all Halts
  bool run_ ABSL_GUARDED_BY(mutex_) = false;
  bool released_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses everything above
};

}  // namespace takt::session
