// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "worker/backend/discrete/device_memory.h"
#include "worker/backend/stream.h"

namespace takt::backend {

// A stream whose work is functions, which a thread of its own runs one after the other. The first
// error sticks: later tasks are not run. Thread-safe.
class TaskStream final : public Stream {
 public:
  using Task = std::function<absl::Status()>;

  // lazy: a task runs only once a thread waits for it, or for a later one. memory: that of its
  // device, borrowed; null: it has none.
  explicit TaskStream(bool lazy, const DeviceMemory* memory = nullptr);
  // Runs the tasks that are left.
  ~TaskStream() override;

  void Push(Task task);
  // Returns where a task finds what the host knows as `address`; null: that is no memory of the
  // device.
  std::byte* Twin(const void* address) const {
    return memory_ == nullptr ? nullptr : memory_->Twin(address);
  }
  // Blocks until every task that was pushed before is done.
  absl::Status Drain();

  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override;
  absl::Status Record(Event& event) override;
  absl::Status Await(Event& event) override;
  void* native() override { return this; }

 private:
  class TaskEvent;
  // Blocks until `count` tasks are done, of all that were ever pushed.
  absl::Status WaitFor(std::uint64_t count);
  // Lets a lazy stream run that many.
  void AskFor(std::uint64_t count);
  // Returns whether they are done, without asking for them.
  absl::StatusOr<bool> IsDone(std::uint64_t count);
  absl::Status ResultLocked(std::uint64_t count) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return count < last_run_ ? absl::OkStatus() : failure_;
  }
  void Main();
  bool MayRunLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return ended_ || (!tasks_.empty() && done_ < wanted_);
  }

  const DeviceMemory* const memory_;
  absl::Mutex mutex_;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  std::uint64_t wanted_ ABSL_GUARDED_BY(mutex_);  // how many are to be done
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  // The number of the last task that was run, from 1. If a task failed, it is that one.
  std::uint64_t last_run_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread thread_;  // last: it uses everything above
};

}  // namespace takt::backend
