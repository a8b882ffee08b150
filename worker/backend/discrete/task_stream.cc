// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/discrete/task_stream.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"

namespace takt::backend {

class TaskStream::TaskEvent final : public Event {
 public:
  absl::Status Wait() override {
    const auto [stream, count] = point();
    return stream == nullptr ? absl::OkStatus() : stream->WaitFor(count);
  }

  absl::Status WaitUnless(absl::FunctionRef<bool()> gives_up) override {
    if (const auto [stream, count] = point(); stream != nullptr) stream->AskFor(count);
    return Event::WaitUnless(gives_up);
  }

  absl::StatusOr<bool> Reached() override {
    const auto [stream, count] = point();
    if (stream == nullptr) return true;
    return stream->IsDone(count);
  }

  absl::StatusOr<std::int64_t> Nanos() override { return nanos_->load(); }

  struct Point {
    TaskStream* stream = nullptr;  // null: never recorded
    std::uint64_t count = 0;       // tasks of the stream that are done when it is reached
  };
  Point point() const {
    const std::lock_guard lock(mutex_);
    return point_;
  }
  void SetPoint(const Point& point) {
    const std::lock_guard lock(mutex_);
    point_ = point;
  }
  // Returns the task that notes when the point was reached. The event may be gone by then.
  Task Note() const {
    return [nanos = nanos_] {
      nanos->store(Clock::Real().SteadyNanos());
      return absl::OkStatus();
    };
  }

 private:
  mutable std::mutex mutex_;
  Point point_;  // guarded by mutex_
  const std::shared_ptr<std::atomic<std::int64_t>> nanos_ =
      std::make_shared<std::atomic<std::int64_t>>(0);
};

void BoundedQueue::AwaitBlocked() {
  const absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&blocked_));
}

TaskStream::TaskStream(const TaskStreamOptions& options)
    : options_(options),
      wanted_(options.lazy ? 0 : std::numeric_limits<std::uint64_t>::max()),
      thread_([this] { Main(); }) {
  if (options.most_launches > 0) window_.emplace(*this, options.most_launches);
}

TaskStream::~TaskStream() {
  Drain().IgnoreError();
  {
    const absl::MutexLock lock(&mutex_);
    ended_ = true;
  }
  thread_.join();
}

std::uint64_t TaskStream::Give(Task task) {
  if (options_.queue == nullptr) {
    const absl::MutexLock lock(&mutex_);
    return GiveLocked(std::move(task));
  }
  const absl::MutexLock driver(&options_.queue->driver_);
  const absl::MutexLock lock(&mutex_);
  AwaitRoomLocked();
  return GiveLocked(std::move(task));
}

std::uint64_t TaskStream::GiveLocked(Task task) {
  tasks_.push_back(std::move(task));
  return done_ + tasks_.size();
}

void TaskStream::AwaitRoomLocked() {
  BoundedQueue& queue = *options_.queue;
  const auto has_room = [this, &queue]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return tasks_.size() < queue.capacity_;
  };
  if (has_room() || !overflow_.ok()) return;
  wanted_ = std::max(wanted_, done_ + tasks_.size() + 1 - queue.capacity_);  // if it is lazy
  // A thread of a stream that has just not been scheduled goes on soon.
  const absl::Condition room(&has_room);
  const absl::Duration soon = std::min(queue.patience_ / 2, absl::Milliseconds(50));
  if (mutex_.AwaitWithTimeout(room, soon)) return;
  {
    const absl::MutexLock lock(&queue.mutex_);
    queue.blocked_ = true;
  }
  if (mutex_.AwaitWithTimeout(room, queue.patience_ - soon)) return;
  overflow_ = absl::ResourceExhaustedError(absl::StrCat(
      "a stream's queue of ", queue.capacity_, " launches stayed full for ",
      absl::FormatDuration(queue.patience_), ", and no thread could give work to the device"));
}

absl::Status TaskStream::Drain() {
  std::uint64_t count = 0;
  {
    const absl::MutexLock lock(&mutex_);
    count = done_ + tasks_.size();
  }
  return WaitFor(count);
}

absl::StatusOr<std::unique_ptr<Event>> TaskStream::CreateEvent() {
  return std::make_unique<TaskEvent>();
}

absl::Status TaskStream::Record(Event& event) {
  auto& recorded = static_cast<TaskEvent&>(event);
  recorded.SetPoint({this, Give(recorded.Note())});
  return absl::OkStatus();
}

absl::Status TaskStream::Await(Event& event) {
  const TaskEvent::Point point = static_cast<TaskEvent&>(event).point();
  if (point.stream == nullptr || point.stream == this) return absl::OkStatus();
  Push([point] { return point.stream->WaitFor(point.count); });
  return absl::OkStatus();
}

void TaskStream::AskFor(std::uint64_t count) {
  const absl::MutexLock lock(&mutex_);
  wanted_ = std::max(wanted_, count);
}

absl::Status TaskStream::WaitFor(std::uint64_t count) {
  const absl::MutexLock lock(&mutex_);
  wanted_ = std::max(wanted_, count);
  const auto done = [this, count]()
                        ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return done_ >= count; };
  mutex_.Await(absl::Condition(&done));
  return ResultLocked(count);
}

absl::StatusOr<bool> TaskStream::IsDone(std::uint64_t count) {
  const absl::MutexLock lock(&mutex_);
  if (done_ < count) return false;
  RETURN_IF_ERROR(ResultLocked(count));
  return true;
}

void TaskStream::Main() {
  pthread_setname_np(pthread_self(), "takt-stream");
  const absl::MutexLock lock(&mutex_);
  for (;;) {
    mutex_.Await(absl::Condition(this, &TaskStream::MayRunLocked));
    if (ended_) return;
    // The task stays in the list while it runs, because it is not done yet.
    const Task task = std::move(tasks_.front());
    if (failure_.ok()) {
      mutex_.Unlock();
      absl::Status status = task();
      mutex_.Lock();
      last_run_ = done_ + 1;
      failure_ = std::move(status);
    }
    tasks_.pop_front();
    ++done_;
  }
}

}  // namespace takt::backend
