// SPDX-License-Identifier: Apache-2.0
// The thread that takes one rank through its life: decode, prepare, wait for the start, run, wait
// for the release, tear down.
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

// From the wire, checked; runs on the job's thread because a large program takes time.
using DecodeAssignment = std::function<absl::StatusOr<control::Assignment>()>;

// Thread-safe. The destructor releases and joins: it may block as long as the runner's teardown
// does.
class JobThread {
 public:
  // Called on the job's thread, in this order; each at most once, `gone` last and always. `report`
  // as RankRunner::Run says, `poisoned` with what RankRunner::Poisoned says, if that is not OK.
  struct Callbacks {
    std::function<void(absl::StatusOr<control::Resumed>)> built;
    std::function<void(Report)> report;
    std::function<void(absl::StatusOr<RunEnd>, control::RankStatus)> run_ended;
    std::function<void(absl::Status)> poisoned;
    std::function<void()> gone;
  };

  JobThread(DecodeAssignment decode, RankRunnerFactory factory, Callbacks callbacks);
  ~JobThread();

  // After a `built` without error.
  void Run();
  // As RankRunner::Halt, as soon as there is a runner.
  void Halt();
  // Ends whatever the runner waits for and releases.
  void Stop(const absl::Status& reason);
  // The runner is not needed any more.
  void Release();
  // Of the runner; the last one known once it is gone.
  control::RankStatus Status() const;

 private:
  void Main(const DecodeAssignment& decode, const RankRunnerFactory& factory);
  // Null, and the error told, if there is nothing to run.
  RankRunner* Build(const DecodeAssignment& decode, const RankRunnerFactory& factory);
  bool ToldLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return run_ || released_; }

  const Callbacks callbacks_;
  mutable absl::Mutex mutex_;
  // Made and destroyed by the job's thread; used by others under the mutex.
  std::unique_ptr<RankRunner> runner_ ABSL_GUARDED_BY(mutex_);
  control::RankStatus last_status_ ABSL_GUARDED_BY(mutex_);
  absl::Status stop_reason_ ABSL_GUARDED_BY(mutex_);
  bool halt_ ABSL_GUARDED_BY(mutex_) = false;
  bool run_ ABSL_GUARDED_BY(mutex_) = false;
  bool released_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses everything above
};

}  // namespace takt::session
