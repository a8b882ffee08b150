// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <deque>
#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace takt::testing {

// The writing side of a worker's stream, which is its own or a part of a shared one.
template <class Request>
class SwarmPort {
 public:
  virtual ~SwarmPort() = default;
  // Call it once, first.
  virtual void Begin(const Request& hello) = 0;
  virtual void Push(Request request) = 0;
  // Ends the stream and waits until it has ended.
  virtual void Cut() = 0;
  virtual bool done() const = 0;
};

// A stream that writes in order and reads until the end.
template <class Request, class Response>
class SwarmStream final : public grpc::ClientBidiReactor<Request, Response>,
                          public SwarmPort<Request> {
 public:
  using Open =
      std::function<void(grpc::ClientContext*, grpc::ClientBidiReactor<Request, Response>*)>;

  SwarmStream(Open open, std::function<void(const Response&)> on_message)
      : open_(std::move(open)), on_message_(std::move(on_message)) {}

  void Begin(const Request& hello) override {
    // The coordinator takes connections one after the other, and may not be there yet.
    context_.set_wait_for_ready(true);
    open_(&context_, this);
    Push(hello);
    this->StartRead(&response_);
    this->StartCall();
  }

  void Push(Request request) override {
    absl::MutexLock lock(&mutex_);
    if (done_) return;
    requests_.push_back(std::move(request));
    if (requests_.size() == 1) this->StartWrite(&requests_.front());
  }

  void Cut() override {
    context_.TryCancel();
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&done_));
  }
  bool done() const override {
    absl::MutexLock lock(&mutex_);
    return done_;
  }

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    requests_.pop_front();
    if (!ok) requests_.clear();
    if (!requests_.empty()) this->StartWrite(&requests_.front());
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    on_message_(response_);
    this->StartRead(&response_);
  }
  void OnDone(const grpc::Status&) override {
    absl::MutexLock lock(&mutex_);
    done_ = true;
  }

 private:
  const Open open_;
  const std::function<void(const Response&)> on_message_;
  grpc::ClientContext context_;
  Response response_;
  mutable absl::Mutex mutex_;
  std::deque<Request> requests_ ABSL_GUARDED_BY(mutex_);  // the first is being written
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace takt::testing
