// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "common/net/socket.h"

namespace takt::net {

class Listener;

// A connection that its listener still serves, on the listener's thread.
class Connection {
 public:
  virtual ~Connection() = default;
  virtual int fd() const = 0;
  // Is called when the socket (non-blocking) is ready. Returns what to wait for next, POLLIN or
  // POLLOUT, or 0 if the listener is done with the connection. At first it waits for POLLIN.
  virtual short Serve(Listener& listener) = 0;
};

struct ListenerOptions {
  std::string name;  // of the thread, at most 15 bytes, and for the log: "metrics"
  // The listener serves at most so many connections at once. One more closes the oldest. So silent
  // connections cannot keep out a client that sends its request within a round trip.
  int max_connections = 128;
  // A connection that is not done by then is closed.
  std::chrono::milliseconds time_limit = std::chrono::seconds(10);
  // The listener accepts so many connections at once, and then so many a second. More of them wait
  // in the kernel's queue. If that is full too, the kernel makes their clients retry, later each
  // time. So clients that all reconnect at the same moment cost no handshakes that are then
  // abandoned. 0: there is no limit.
  double accepts_per_second = 0;
  int accepts_at_once = 1;
  // Returns what serves a new connection, or null if there is nothing to serve. It is called on the
  // listener's thread.
  std::function<std::unique_ptr<Connection>(Socket socket)> accept;
};

// Accepts connections from anybody on its own thread until it is destroyed, and closes those that
// it serves then. The process keeps some descriptors for other things: connections beyond that are
// closed as they come.
class Listener {
 public:
  static constexpr int kReservedDescriptors = 64;

  // socket: from ListenOn.
  Listener(Socket socket, ListenerOptions options);
  ~Listener();
  Listener(const Listener&) = delete;

  // The address with the real port: "127.0.0.1:9464".
  const std::string& address() const { return address_; }

  // Says in the log that a connection was refused. It writes one line for each doubling of their
  // number, so that a flood of connections does not flood the log. Listener's thread.
  void LogRefusal(int fd, const char* why);

 private:
  using Time = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::steady_clock::duration;
  struct Served {
    std::unique_ptr<Connection> connection;
    short events;
    Time until;
  };

  void Run();
  // Returns for how long no connection may be accepted.
  Duration PauseAt(Time now) const;
  // Returns false if there is no descriptor for the connection that waits.
  bool Accept();

  const Socket socket_, wake_;
  const ListenerOptions options_;
  const std::string address_;
  const int max_descriptor_;
  const Duration accept_interval_;  // 0: there is no limit
  // Only the thread uses these.
  Time paced_until_;          // each connection moves it on by the interval
  std::list<Served> served_;  // oldest first
  std::uint64_t num_refused_ = 0;

  std::thread thread_;
};

}  // namespace takt::net
