// SPDX-License-Identifier: Apache-2.0
// A bidirectional stream that a client keeps up. It connects, says hello, reads and writes at the
// same time. When the stream breaks, it waits a little, longer each time and jittered, and connects
// again.
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/sync_stream.h>
#include <pthread.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/steady_cond_var.h"
#include "proto/rpc_status.h"

namespace takt::worker_rpc {

// Returns how long to wait before attempt `failures` + 1. The wait doubles from `first` to `most`;
// a random half of it at most is left out, so that workers that lost their coordinator together do
// not return together.
inline absl::Duration Backoff(int failures, absl::Duration first, absl::Duration most,
                              std::mt19937& random) {
  const absl::Duration whole =
      std::min(most, first * static_cast<double>(1 << std::clamp(failures - 1, 0, 20)));
  return whole * std::uniform_real_distribution<double>(0.5, 1.0)(random);
}

// The client owns it. Stop, or the destructor, ends and joins its threads.
template <class Request, class Response>
class ReconnectingStream {
 public:
  using ReaderWriter = grpc::ClientReaderWriter<Request, Response>;

  // Called on the stream's threads. `next` and `on_message` may run at the same time; the others
  // run alone.
  struct Hooks {
    std::function<std::unique_ptr<ReaderWriter>(grpc::ClientContext*)> open;
    // Returns the first message of a connection, or nullopt to be asked again soon, before
    // connecting.
    std::function<std::optional<Request>()> hello;
    // Blocks for the next message to write. Returns nullopt once `interrupt` was called for this
    // connection.
    std::function<std::optional<Request>()> next;
    std::function<void()> interrupt;
    std::function<void(const Response&)> on_message;
    // Called when the connection has ended. Returns how long to wait at least before the next one.
    std::function<absl::Duration(const absl::Status&)> on_end;
  };

  ReconnectingStream(std::string thread_name, Hooks hooks)
      : name_(std::move(thread_name)), hooks_(std::move(hooks)), thread_([this] { Main(); }) {}
  ~ReconnectingStream() { Stop(); }

  void Stop() {
    {
      absl::MutexLock lock(&mutex_);
      stopped_ = true;
      if (context_ != nullptr) context_->TryCancel();
    }
    stop_.SignalAll();
    if (thread_.joinable()) thread_.join();
  }

  // Ends the connection, if there is one. The stream connects again soon.
  void Restart() {
    absl::MutexLock lock(&mutex_);
    if (context_ != nullptr) context_->TryCancel();
  }

 private:
  static constexpr absl::Duration kFirstBackoff = absl::Milliseconds(100);
  static constexpr absl::Duration kMostBackoff = absl::Seconds(2);

  void Main() {
    pthread_setname_np(pthread_self(), name_.c_str());
    std::mt19937 random{std::random_device()()};
    int failures = 0;
    absl::Duration wait = absl::ZeroDuration();
    while (!Stopped(wait)) {
      std::optional<Request> hello = hooks_.hello();
      if (!hello.has_value()) {
        wait = kFirstBackoff;
        continue;
      }
      bool heard = false;
      const absl::Status status = Connection(*hello, heard);
      failures = heard ? 1 : failures + 1;
      wait =
          std::max(hooks_.on_end(status), Backoff(failures, kFirstBackoff, kMostBackoff, random));
    }
  }

  // Runs one connection from its hello to its end.
  absl::Status Connection(const Request& hello, bool& heard) {
    grpc::ClientContext context;
    if (!Publish(&context)) return absl::CancelledError("stopped");
    std::unique_ptr<ReaderWriter> stream = hooks_.open(&context);
    if (stream->Write(hello)) {
      std::thread writer([&] {
        pthread_setname_np(pthread_self(), name_.c_str());
        while (std::optional<Request> request = hooks_.next()) {
          if (!stream->Write(*request)) break;
        }
      });
      Response response;
      while (stream->Read(&response)) {
        heard = true;
        hooks_.on_message(response);
      }
      hooks_.interrupt();
      writer.join();
    }
    const absl::Status status = FromGrpc(stream->Finish(), context);
    Publish(nullptr);
    return status;
  }

  // Makes the context of the connection known to Stop. Returns false if Stop was called before.
  bool Publish(grpc::ClientContext* context) {
    absl::MutexLock lock(&mutex_);
    context_ = stopped_ ? nullptr : context;
    return !stopped_;
  }

  // Waits, and returns true once stopped.
  bool Stopped(absl::Duration wait) {
    absl::MutexLock lock(&mutex_);
    return stop_.AwaitFor(mutex_, absl::Condition(&stopped_), wait);
  }

  const std::string name_;
  const Hooks hooks_;
  absl::Mutex mutex_;
  SteadyCondVar stop_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::thread thread_;  // last: it uses everything above
};

}  // namespace takt::worker_rpc
