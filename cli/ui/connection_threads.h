// SPDX-License-Identifier: Apache-2.0
// The threads on which an HTTP server handles its connections.
#pragma once

#include <httplib.h>

#include <cstddef>
#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace takt::cli {

// Handles at most `num_threads` connections at a time. The server accepts no further connection
// until one of them ends, so that the system's queue of connections, which is short, is all that
// grows.
class ConnectionThreads final : public httplib::TaskQueue {
 public:
  explicit ConnectionThreads(std::size_t num_threads) : free_(num_threads), pool_(num_threads) {}

  // Newer versions of the library return whether the task was taken.
  using Enqueued =
      decltype(std::declval<httplib::TaskQueue&>().enqueue(std::declval<std::function<void()>>()));

  Enqueued enqueue(std::function<void()> handle) override {
    {
      const absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(
          +[](std::size_t* free) { return *free > 0; }, &free_));
      --free_;
    }
    return pool_.enqueue([this, handle = std::move(handle)] {
      handle();
      const absl::MutexLock lock(&mutex_);
      ++free_;
    });
  }
  void shutdown() override { pool_.shutdown(); }

 private:
  absl::Mutex mutex_;
  std::size_t free_ ABSL_GUARDED_BY(mutex_);
  httplib::ThreadPool pool_;
};

}  // namespace takt::cli
