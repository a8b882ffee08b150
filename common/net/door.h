// SPDX-License-Identifier: Apache-2.0
// A listening socket that anybody may reach. Whoever connects is a guest until it has said what it
// came for; what becomes of the connection then is the host's affair.
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

class Door;

// One connection, on the door's thread.
class Guest {
 public:
  virtual ~Guest() = default;
  virtual int fd() const = 0;
  // The socket (non-blocking) is ready. Returns what to wait for next, POLLIN or POLLOUT, or 0: it
  // is done. At first it waits for POLLIN.
  virtual short Serve(Door& door) = 0;
};

struct DoorOptions {
  std::string name;  // of the thread, at most 15 bytes, and for the log: "metrics"
  // So many guests at once: one more shows the oldest out. So whoever holds connections open and
  // says nothing keeps nobody out that says what it wants within a round trip.
  int max_guests = 128;
  // A guest that is not done by then is shown out.
  std::chrono::milliseconds patience = std::chrono::seconds(10);
  // Makes the guest of a new connection; null: it is done already. Door's thread.
  std::function<std::unique_ptr<Guest>(Socket socket)> welcome;
};

// Lets guests in until it ends, which ends them. The process keeps some descriptors for other
// things: connections beyond that are closed as they come.
class Door {
 public:
  static constexpr int kReservedDescriptors = 64;

  // listener: from ListenOn.
  Door(Socket listener, DoorOptions options);
  ~Door();
  Door(const Door&) = delete;

  // "127.0.0.1:9464", with the real port.
  const std::string& address() const { return address_; }

  // For who stands behind the door: says in the log that somebody was refused. One line for each
  // doubling of their number, so that a flood of connections is none of lines. Door's thread.
  void Refuse(int fd, const char* why);

 private:
  using Time = std::chrono::steady_clock::time_point;
  struct Visit {
    std::unique_ptr<Guest> guest;
    short events;
    Time until;
  };

  void Run();
  // False: there is no descriptor for whoever waits outside.
  bool LetIn();

  const Socket listener_, wake_;
  const DoorOptions options_;
  const std::string address_;
  const int max_descriptor_;
  // The thread's alone.
  std::list<Visit> visits_;  // oldest first
  std::uint64_t num_refused_ = 0;

  std::thread thread_;
};

}  // namespace takt::net
