// SPDX-License-Identifier: Apache-2.0
#include "worker/session/stall_watch.h"

#include <pthread.h>

#include <chrono>

namespace takt::session {

void StallLog::Awake() {
  absl::MutexLock lock(&mutex_);
  AwakeLocked();
}

void StallLog::AwakeLocked() {
  const std::int64_t now = clock_.SteadyNanos();
  const std::int64_t due = seen_nanos_ + kPeriodNanos;
  seen_nanos_ = now;
  if (now - due < kLeastStallNanos) return;
  // The process ran for some part of the period before; which part is unknown.
  stalls_.push_back({due, now});
  if (stalls_.size() > trace::kMostStalls) stalls_.pop_front();
}

std::vector<trace::Span> StallLog::Between(std::int64_t start_nanos, std::int64_t end_nanos) {
  absl::MutexLock lock(&mutex_);
  // When a process goes on, its threads wake in any order; the first one to wake records the stall.
  AwakeLocked();
  std::vector<trace::Span> stalls;
  for (const trace::Span& stall : stalls_) {
    if (stall.end_nanos > start_nanos && stall.start_nanos < end_nanos) stalls.push_back(stall);
  }
  return stalls;
}

StallWatch::StallWatch(StallLog& log) : log_(log), thread_(&StallWatch::Loop, this) {}

StallWatch::~StallWatch() {
  stopping_ = true;
  thread_.join();
}

void StallWatch::Loop() {
  pthread_setname_np(pthread_self(), "takt-stalls");
  // This is not a timed wait on a mutex, because Abseil's end by the wall clock, which may jump.
  while (!stopping_) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(StallLog::kPeriodNanos));
    log_.Awake();
  }
}

}  // namespace takt::session
