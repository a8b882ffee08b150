// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace takt::session {

// Runs tasks on a thread of its own, one after the other, in the order in which they were added.
// Thread-safe.
class TaskThread final {
 public:
  explicit TaskThread(const char* name);
  // Blocks until every task that was added has run.
  ~TaskThread();

  // Never blocks.
  void Add(std::function<void()> task);
  // Blocks until every task that was added has run.
  void Finish();

 private:
  void Main();
  bool IdleLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return tasks_.empty() && !running_;
  }
  bool ToldLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !tasks_.empty() || ended_;
  }

  absl::Mutex mutex_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses everything above
};

}  // namespace takt::session
