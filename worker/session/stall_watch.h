// SPDX-License-Identifier: Apache-2.0
// Notices when this process did not run: it was stopped, frozen with its container, paused with its
// virtual machine, or had to wait for other processes that used the processors.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "common/trace/step_trace.h"

namespace takt::session {

// The stalls that were noticed. Thread-safe.
class StallLog {
 public:
  // Some thread calls Awake at least this often.
  static constexpr std::int64_t kPeriodNanos = 10'000'000;
  // A call that is later than this shows that the process was kept from running.
  static constexpr std::int64_t kLeastStallNanos = 5'000'000;

  explicit StallLog(const Clock& clock) : clock_(clock), seen_nanos_(clock.SteadyNanos()) {}

  // Says that the process runs now.
  void Awake();

  // Returns the stalls, ascending, that overlap the time from `start_nanos` to `end_nanos` (steady
  // clock). Only the newest trace::kMostStalls are known. The call also counts as Awake.
  std::vector<trace::Span> Between(std::int64_t start_nanos, std::int64_t end_nanos);

 private:
  void AwakeLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock& clock_;
  absl::Mutex mutex_;
  std::int64_t seen_nanos_ ABSL_GUARDED_BY(mutex_);  // when Awake was called last
  std::deque<trace::Span> stalls_ ABSL_GUARDED_BY(mutex_);
};

// Calls Awake of a log regularly, on a thread of its own, until it is destroyed.
class StallWatch final {
 public:
  explicit StallWatch(StallLog& log);  // borrowed
  ~StallWatch();

 private:
  void Loop();

  StallLog& log_;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace takt::session
