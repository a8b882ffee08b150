// SPDX-License-Identifier: Apache-2.0
// Handles the connections of an HTTP server on threads, and limits what a peer may send.
#pragma once

#include <httplib.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "cli/ui/connection_limits.h"

namespace takt::cli {

// cpp-httplib keeps all of a line that it reads, however long, and waits for each byte anew. So a
// connection comes to the library only when the whole head of its request is there and is small;
// any other one is shut down first. That is enough for a server that closes a connection after one
// request and reads no bodies.
//
// While all threads are in use, every further connection is answered with 503 and closed, on the
// thread that accepts connections. So nothing grows, however many peers there are.
class ConnectionThreads final : public httplib::TaskQueue {
 public:
  // port: on which the server listens.
  ConnectionThreads(int port, ConnectionLimits limits);

  // Newer versions of the library return whether the task was taken.
  using Enqueued =
      decltype(std::declval<httplib::TaskQueue&>().enqueue(std::declval<std::function<void()>>()));

  // Only the thread that accepts connections calls it, once for each.
  Enqueued enqueue(std::function<void()> handle) override;
  void shutdown() override { pool_.shutdown(); }

 private:
  // A socket and its number among all sockets that the system ever had.
  struct Connection {
    int socket = -1;  // -1: the peer is gone already
    std::uint64_t number = 0;
  };

  // The library does not say which connection a task is for. It is the one that was not there
  // before.
  Connection FindNewConnection() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Handle(const Connection& connection, const std::function<void()>& handle);
  // The connection is closed, and leaves so many threads.
  void Forget(const Connection& connection, std::size_t num_threads);

  const int port_;
  const ConnectionLimits limits_;
  absl::Mutex mutex_;
  std::set<std::uint64_t> handled_ ABSL_GUARDED_BY(mutex_);  // numbers of connections
  std::size_t free_ ABSL_GUARDED_BY(mutex_);                 // threads
  httplib::ThreadPool pool_;
};

}  // namespace takt::cli
