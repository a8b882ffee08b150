// SPDX-License-Identifier: Apache-2.0
// The writing half of a server's stream. It is for rpc/ folders (target takt_rpc_status).
#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/log.h"
#include "proto/rpc_status.h"

namespace takt {

// The writing half of a stream. It lives until its call is done and its last owner has dropped it.
// Push and Finish may be called from any thread at any time and do nothing once the stream is
// finished.
template <class Reactor, class Response>
class WritingStream : public Reactor {
 public:
  void OnWriteDone(bool ok) final {
    bool written_out = false;
    {
      absl::MutexLock lock(&mutex_);
      writing_ = false;
      if (!queue_.empty()) queue_.pop_front();
      if (!ok) queue_.clear();
      NextLocked();
      written_out = !writing_ && !finished_;
    }
    if (written_out) OnWrittenOut();
  }
  void OnDone() final { std::exchange(self_, nullptr).reset(); }

 protected:
  // stall: a peer that does not read one message for this time, or at the latest for twice this
  // time, loses its stream.
  WritingStream(grpc::CallbackServerContext* context, std::size_t max_queue, absl::Duration stall)
      : context_(context), max_queue_(max_queue), stall_(stall) {}

  // Call this once, before any operation starts.
  void KeepUntilDone(std::shared_ptr<WritingStream> self) {
    self_ = std::move(self);
    LookLater(self_);
  }

  // Called when everything that was pushed is written.
  virtual void OnWrittenOut() {}

  // Moves what is in `next` to `last`, which waits to be written, if one message can have both.
  // Returns whether it did. It is called under the lock of the stream and must not use the stream.
  virtual bool Join(Response& /*last*/, Response& /*next*/) { return false; }

  // Starts the next read, from any thread. Returns false if the stream is finished; no callback
  // follows then.
  template <class Request>
  [[nodiscard]] bool ReadOn(Request* request) {
    absl::MutexLock lock(&mutex_);
    if (finished_) return false;
    this->StartRead(request);
    return true;
  }

  // A peer that lets more than max_queue messages pile up loses its stream.
  void Push(Response response) {
    absl::MutexLock lock(&mutex_);
    AddLocked(std::move(response));
    if (!writing_) NextLocked();
  }
  // Like Push, but nothing is written before Flush or the next Push.
  void Gather(Response response) {
    absl::MutexLock lock(&mutex_);
    AddLocked(std::move(response));
  }
  void Flush() {
    absl::MutexLock lock(&mutex_);
    if (!writing_) NextLocked();
  }

  // Ends the stream once what was pushed is written.
  void FinishAfterWrites(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    if (finish_status_ || finished_) return;
    finish_status_ = status;
    if (!writing_) NextLocked();
  }

  // Ends the stream now; what is not written is dropped.
  void Cut(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    CutLocked(status);
  }

  bool finished() const {
    absl::MutexLock lock(&mutex_);
    return finished_ || finish_status_.has_value();
  }
  bool writing() const {
    absl::MutexLock lock(&mutex_);
    return writing_;
  }
  grpc::CallbackServerContext& context() { return *context_; }

 private:
  // Looks at the stream again after `stall`. The alarm does not keep the stream alive. Each call
  // makes a new alarm, because an alarm may not be set in its own callback.
  void LookLater(const std::shared_ptr<WritingStream>& self) {
    alarm_ = std::make_unique<grpc::Alarm>();
    alarm_->Set(absl::ToChronoTime(absl::Now() + stall_),
                [weak = std::weak_ptr<WritingStream>(self)](bool fired) {
                  const std::shared_ptr<WritingStream> stream = weak.lock();
                  if (fired && stream != nullptr && stream->GoesOn()) stream->LookLater(stream);
                });
  }

  // Returns false if the stream has ended. Cuts it, and returns false, if the peer has still not
  // read the message of the last look.
  bool GoesOn() {
    absl::MutexLock lock(&mutex_);
    if (finished_) return false;
    if (writing_ && num_writes_ == num_writes_seen_) {
      Log(LogLevel::kWarning, "a peer does not read: its stream is cut",
          {{"peer", context_->peer()}, {"stall", absl::FormatDuration(stall_)}});
      CutLocked(absl::ResourceExhaustedError("the peer does not read what is sent to it"));
      return false;
    }
    num_writes_seen_ = num_writes_;
    return true;
  }

  void AddLocked(Response response) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (finish_status_ || finished_) return;
    const std::size_t in_flight = writing_ ? 1 : 0;
    if (queue_.size() > in_flight && Join(queue_.back(), response)) return;
    if (queue_.size() >= max_queue_) {
      CutLocked(absl::ResourceExhaustedError("the peer does not read what is sent to it"));
      return;
    }
    queue_.push_back(std::move(response));
  }

  void CutLocked(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (finished_) return;
    if (!finish_status_) finish_status_ = status;
    if (writing_) {
      // The message in flight stays the queue's front until OnWriteDone, which follows from the
      // cancellation.
      queue_.resize(1);
      context_->TryCancel();
    } else {
      queue_.clear();
      NextLocked();
    }
  }

  void NextLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (finished_) return;
    if (!queue_.empty()) {
      writing_ = true;
      ++num_writes_;
      this->StartWrite(&queue_.front());
    } else if (finish_status_) {
      finished_ = true;
      this->Finish(ToGrpc(*finish_status_, *context_));
    }
  }

  grpc::CallbackServerContext* const context_;
  const std::size_t max_queue_;
  const absl::Duration stall_;
  std::shared_ptr<WritingStream> self_;
  // Used by one thread at a time: first by the handler, then by its own callback.
  std::unique_ptr<grpc::Alarm> alarm_;
  mutable absl::Mutex mutex_;
  std::deque<Response> queue_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  std::int64_t num_writes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::int64_t num_writes_seen_ ABSL_GUARDED_BY(mutex_) = 0;  // by the last look
  std::optional<absl::Status> finish_status_ ABSL_GUARDED_BY(mutex_);
  // Finish was called: no operation starts any more.
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace takt
