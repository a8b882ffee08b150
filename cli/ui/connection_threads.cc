// SPDX-License-Identifier: Apache-2.0
#include "cli/ui/connection_threads.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "absl/time/clock.h"

namespace takt::cli {
namespace {

constexpr int kMostDescriptors = 1024;  // the library handles none above

bool IsConnectionOf(int port, int descriptor) {
  sockaddr_in own{}, peer{};
  socklen_t own_size = sizeof(own), peer_size = sizeof(peer);
  return getsockname(descriptor, reinterpret_cast<sockaddr*>(&own), &own_size) == 0 &&
         own.sin_family == AF_INET && ntohs(own.sin_port) == port &&
         getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &peer_size) == 0;
}

// Waits until there are more than `seen` bytes to read. Returns false if the time is over.
bool WaitForMore(int socket, std::size_t seen, absl::Time deadline) {
  const int wanted = static_cast<int>(seen) + 1;
  setsockopt(socket, SOL_SOCKET, SO_RCVLOWAT, &wanted, sizeof(wanted));
  const absl::Duration left = std::max(absl::ZeroDuration(), deadline - absl::Now());
  pollfd readable{.fd = socket, .events = POLLIN, .revents = 0};
  const bool is_there = poll(&readable, 1, static_cast<int>(absl::ToInt64Milliseconds(left))) == 1;
  const int one = 1;
  setsockopt(socket, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof(one));
  return is_there;
}

// Returns whether the peer sends a whole head in time. Nothing is taken from the socket.
bool SendsWholeHead(int socket, const ConnectionLimits& limits) {
  const absl::Time deadline = absl::Now() + limits.head_time;
  std::vector<char> head(limits.head_bytes);
  std::size_t seen = 0;
  while (seen < head.size() && WaitForMore(socket, seen, deadline)) {
    const ssize_t got = recv(socket, head.data(), head.size(), MSG_PEEK | MSG_DONTWAIT);
    // No more than before: the peer has closed its end.
    if (got < 0 || static_cast<std::size_t>(got) <= seen) return false;
    seen = static_cast<std::size_t>(got);
    if (std::string_view(head.data(), seen).find("\r\n\r\n") != std::string_view::npos) return true;
  }
  return false;
}

constexpr char kRefusal[] =
    "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\n"
    "Content-Length: 42\r\nRetry-After: 1\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    "too many connections are open; close some\n";
// How long a refused peer may take to send its request. Data that comes after the connection was
// closed would make its system drop the answer.
constexpr absl::Duration kRefusedPeerTime = absl::Milliseconds(20);

// Takes what has arrived, so that nothing is left that the library could read.
void Drain(int socket) {
  char bytes[4096];
  while (recv(socket, bytes, sizeof(bytes), MSG_DONTWAIT) > 0) {
  }
}

void Refuse(int socket) {
  send(socket, kRefusal, sizeof(kRefusal) - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
  ::shutdown(socket, SHUT_WR);
  pollfd readable{.fd = socket, .events = POLLIN, .revents = 0};
  poll(&readable, 1, static_cast<int>(absl::ToInt64Milliseconds(kRefusedPeerTime)));
  ::shutdown(socket, SHUT_RDWR);  // no more can arrive
  Drain(socket);
}

}  // namespace

ConnectionThreads::ConnectionThreads(int port, ConnectionLimits limits)
    : port_(port), limits_(limits), free_(limits.connections), pool_(limits.connections) {}

ConnectionThreads::Enqueued ConnectionThreads::enqueue(std::function<void()> handle) {
  Connection connection;
  bool is_refused = false;
  {
    const absl::MutexLock lock(&mutex_);
    connection = FindNewConnection();
    is_refused = free_ == 0;
    if (!is_refused) --free_;
  }
  if (is_refused) {
    if (connection.socket >= 0) Refuse(connection.socket);
    handle();  // finds nothing to read, and closes the socket
    Forget(connection, /*num_threads=*/0);
    return static_cast<Enqueued>(true);
  }
  return pool_.enqueue(
      [this, connection, handle = std::move(handle)] { Handle(connection, handle); });
}

ConnectionThreads::Connection ConnectionThreads::FindNewConnection() {
  for (int descriptor = 0; descriptor < kMostDescriptors; ++descriptor) {
    if (!IsConnectionOf(port_, descriptor)) continue;
    Connection connection = {.socket = descriptor};
    socklen_t size = sizeof(connection.number);
    if (getsockopt(descriptor, SOL_SOCKET, SO_COOKIE, &connection.number, &size) != 0) continue;
    if (handled_.insert(connection.number).second) return connection;
  }
  return {};
}

void ConnectionThreads::Handle(const Connection& connection, const std::function<void()>& handle) {
  if (connection.socket >= 0 && !SendsWholeHead(connection.socket, limits_))
    ::shutdown(connection.socket, SHUT_RDWR);
  handle();  // closes the socket
  Forget(connection, /*num_threads=*/1);
}

void ConnectionThreads::Forget(const Connection& connection, std::size_t num_threads) {
  const absl::MutexLock lock(&mutex_);
  handled_.erase(connection.number);
  free_ += num_threads;
}

}  // namespace takt::cli
