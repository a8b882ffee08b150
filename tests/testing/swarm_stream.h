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

// One stream of a worker: writes in order, reads until the end.
template <class Request, class Response>
class SwarmStream final : public grpc::ClientBidiReactor<Request, Response> {
 public:
  explicit SwarmStream(std::function<void(const Response&)> on_message)
      : on_message_(std::move(on_message)) {}

  template <class Open>
  void Begin(const Open& open, const Request& hello) {
    // The coordinator takes connections one after the other, and may not be there yet.
    context_.set_wait_for_ready(true);
    open(&context_, this);
    Push(hello);
    this->StartRead(&response_);
    this->StartCall();
  }

  void Push(Request request) {
    absl::MutexLock lock(&mutex_);
    if (done_) return;
    requests_.push_back(std::move(request));
    if (requests_.size() == 1) this->StartWrite(&requests_.front());
  }

  // Ends it and waits until it has.
  void Cut() {
    context_.TryCancel();
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&done_));
  }
  bool done() const {
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
  const std::function<void(const Response&)> on_message_;
  grpc::ClientContext context_;
  Response response_;
  mutable absl::Mutex mutex_;
  std::deque<Request> requests_ ABSL_GUARDED_BY(mutex_);  // the first is being written
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace takt::testing
