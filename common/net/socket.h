// SPDX-License-Identifier: Apache-2.0
// A descriptor with an owner, and numeric addresses.
#pragma once

#include <sys/socket.h>

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"

namespace takt::net {

// Owns a descriptor and closes it when destroyed.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(other.Release()) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket();

  int fd() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  [[nodiscard]] int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

// Writes "127.0.0.1:4711" or "[::1]:4711".
std::string ToString(const SocketAddress& address);
absl::StatusOr<SocketAddress> ParseSocketAddress(std::string_view text);
// Returns whether it is 127.0.0.0/8 or ::1, which only its own host reaches.
bool IsLoopback(const SocketAddress& address);
// Returns whether it is 0.0.0.0 or ::, which is every address of a host.
bool IsUnspecified(const SocketAddress& address);

// Listens on `host` (a name or an address of this machine; "" is none) and `port` ("0": a free
// one). The socket is non-blocking. Errors: kUnavailable, in words.
absl::StatusOr<Socket> ListenOn(const std::string& host, const std::string& port);
// Does the same for "127.0.0.1:9464", "[::1]:0" or "localhost:80". The host may not be left out.
absl::StatusOr<Socket> ListenOn(std::string_view host_and_port);
absl::StatusOr<SocketAddress> LocalAddress(const Socket& socket);
// Returns the address at the other end of a connection, for messages.
std::string PeerName(int fd);

}  // namespace takt::net
