// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "worker/backend/discrete/device_memory.h"
#include "worker/backend/launch_window.h"
#include "worker/backend/stream.h"

namespace takt::backend {

// Has what the streams of one device share if their queues are bounded. A thread that gives work to
// a stream whose queue is full waits inside the driver, and meanwhile no thread can give work to
// any stream. Thread-safe.
class BoundedQueue {
 public:
  // A thread that waits longer than `patience` goes on, and the stream fails: an error that names
  // the deadlock is better than a test that hangs.
  BoundedQueue(std::size_t capacity, absl::Duration patience)
      : capacity_(capacity), patience_(patience) {}

  // Blocks until a thread has waited for room in vain for a while.
  void AwaitBlocked();

 private:
  friend class TaskStream;
  const std::size_t capacity_;  // of each stream
  const absl::Duration patience_;
  absl::Mutex driver_;  // a thread holds it while it gives work to a stream
  absl::Mutex mutex_;
  bool blocked_ ABSL_GUARDED_BY(mutex_) = false;  // since a thread waited so long
};

struct TaskStreamOptions {
  bool lazy = false;  // a task runs only once a thread waits for it, or for a later one
  const DeviceMemory* memory = nullptr;  // of its device, borrowed; null: it has none
  BoundedQueue* queue = nullptr;         // of its device, borrowed; null: it takes any amount
  int most_launches = 0;                 // of its LaunchWindow; 0: it has none
};

// A stream whose work is functions, which a thread of its own runs one after the other. The first
// error sticks: later tasks are not run. Thread-safe.
class TaskStream final : public Stream {
 public:
  using Task = std::function<absl::Status()>;

  explicit TaskStream(bool lazy) : TaskStream(TaskStreamOptions{.lazy = lazy}) {}
  explicit TaskStream(const TaskStreamOptions& options);
  // Runs the tasks that are left.
  ~TaskStream() override;

  void Push(Task task) { Give(std::move(task)); }
  // Returns where a task finds what the host knows as `address`; null: that is no memory of the
  // device.
  std::byte* Twin(const void* address) const {
    return options_.memory == nullptr ? nullptr : options_.memory->Twin(address);
  }
  // Blocks until every task that was pushed before is done.
  absl::Status Drain();

  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override;
  absl::Status Record(Event& event) override;
  absl::Status Await(Event& event) override;
  absl::Status MakeRoom(std::int64_t launches) override {
    return window_.has_value() ? window_->Admit(launches) : absl::OkStatus();
  }
  void EndWaits() override {
    if (window_.has_value()) window_->EndWaits();
  }
  void* native() override { return this; }

 private:
  class TaskEvent;
  // Returns how many tasks are done once this one is, of all that were ever pushed.
  std::uint64_t Give(Task task);
  std::uint64_t GiveLocked(Task task) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AwaitRoomLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Blocks until `count` tasks are done, of all that were ever pushed.
  absl::Status WaitFor(std::uint64_t count);
  // Lets a lazy stream run that many.
  void AskFor(std::uint64_t count);
  // Returns whether they are done, without asking for them.
  absl::StatusOr<bool> IsDone(std::uint64_t count);
  absl::Status ResultLocked(std::uint64_t count) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!overflow_.ok()) return overflow_;
    return count < last_run_ ? absl::OkStatus() : failure_;
  }
  void Main();
  bool MayRunLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return ended_ || (!tasks_.empty() && done_ < wanted_);
  }

  const TaskStreamOptions options_;
  std::optional<LaunchWindow> window_;  // its creator's thread uses it
  absl::Mutex mutex_;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  std::uint64_t wanted_ ABSL_GUARDED_BY(mutex_);  // how many are to be done
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  absl::Status overflow_ ABSL_GUARDED_BY(mutex_);  // the queue stayed full
  // The number of the last task that was run, from 1. If a task failed, it is that one.
  std::uint64_t last_run_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread thread_;  // last: it uses everything above
};

}  // namespace takt::backend
