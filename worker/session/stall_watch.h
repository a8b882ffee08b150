// SPDX-License-Identifier: Apache-2.0
// Notices when this process did not run: stopped, frozen with its container, paused with its
// virtual machine, or behind others that had the processors.
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

// What is known of it. Thread-safe.
class StallLog {
 public:
  // Somebody is awake at least this often.
  static constexpr std::int64_t kPeriodNanos = 10'000'000;
  // Who is later than this was kept from running.
  static constexpr std::int64_t kLeastStallNanos = 5'000'000;

  explicit StallLog(const Clock& clock) : clock_(clock), seen_nanos_(clock.SteadyNanos()) {}

  // The process runs, now.
  void Awake();

  // That overlap the time from `start_nanos` to `end_nanos` (steady clock), ascending, of the
  // newest trace::kMostStalls. Who asks is awake.
  std::vector<trace::Span> Between(std::int64_t start_nanos, std::int64_t end_nanos);

 private:
  void AwakeLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock& clock_;
  absl::Mutex mutex_;
  std::int64_t seen_nanos_ ABSL_GUARDED_BY(mutex_);  // when somebody was awake last
  std::deque<trace::Span> stalls_ ABSL_GUARDED_BY(mutex_);
};

// Keeps a log awake, on a thread of its own, until destroyed.
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
