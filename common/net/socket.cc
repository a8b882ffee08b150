// SPDX-License-Identifier: Apache-2.0
#include "common/net/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::net {

namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<AddressList> LookUp(const std::string& host, const std::string& port, int flags) {
  const addrinfo hints = {.ai_flags = flags, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(host.c_str(), port.empty() ? nullptr : port.c_str(), &hints, &found);
  if (error == 0) return AddressList(found, &freeaddrinfo);
  return absl::UnavailableError(absl::StrCat(host, ": ", gai_strerror(error)));
}

absl::Status SystemError(std::string_view what) {
  return absl::UnavailableError(
      absl::StrCat(absl::string_view(what.data(), what.size()), ": ", std::strerror(errno)));
}

struct HostAndPort {
  std::string host, port;
};

absl::StatusOr<HostAndPort> Split(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  std::string_view host = text.substr(0, colon);
  if (colon == std::string_view::npos || host.empty())
    return absl::InvalidArgumentError("must be HOST:PORT");
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return HostAndPort{std::string(host), std::string(text.substr(colon + 1))};
}

}  // namespace

Socket::~Socket() {
  if (valid()) close(fd_);
}

std::string ToString(const SocketAddress& address) {
  std::array<char, NI_MAXHOST> host;
  std::array<char, NI_MAXSERV> port;
  if (getnameinfo(address.get(), address.size, host.data(), host.size(), port.data(), port.size(),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "?";
  }
  const bool is_v6 = address.storage.ss_family == AF_INET6;
  return absl::StrCat(is_v6 ? "[" : "", host.data(), is_v6 ? "]:" : ":", port.data());
}

absl::StatusOr<SocketAddress> ParseSocketAddress(std::string_view text) {
  ASSIGN_OR_RETURN(const HostAndPort parts, Split(text));
  ASSIGN_OR_RETURN(const AddressList found,
                   LookUp(parts.host, parts.port, AI_NUMERICHOST | AI_NUMERICSERV));
  SocketAddress address{.size = found->ai_addrlen};
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  return address;
}

bool IsLoopback(const SocketAddress& address) {
  if (address.storage.ss_family == AF_INET6)
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address.get())->sin6_addr);
  const auto* const of_4 = reinterpret_cast<const sockaddr_in*>(address.get());
  return ntohl(of_4->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

bool IsUnspecified(const SocketAddress& address) {
  if (address.storage.ss_family == AF_INET6)
    return IN6_IS_ADDR_UNSPECIFIED(
        &reinterpret_cast<const sockaddr_in6*>(address.get())->sin6_addr);
  return reinterpret_cast<const sockaddr_in*>(address.get())->sin_addr.s_addr == INADDR_ANY;
}

absl::StatusOr<Socket> ListenOn(const std::string& host, const std::string& port) {
  ASSIGN_OR_RETURN(const AddressList found, LookUp(host, port, AI_NUMERICSERV));
  absl::Status error;
  for (const addrinfo* at = found.get(); at != nullptr; at = at->ai_next) {
    Socket socket(::socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    // A restarted daemon gets its port back although connections of its last life linger.
    const int on = 1;
    if (socket.valid() && setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
        bind(socket.fd(), at->ai_addr, at->ai_addrlen) == 0 &&
        listen(socket.fd(), SOMAXCONN) == 0) {
      return socket;
    }
    error = SystemError(absl::StrCat(host, ":", port));
  }
  return error;
}

absl::StatusOr<Socket> ListenOn(std::string_view host_and_port) {
  ASSIGN_OR_RETURN(const HostAndPort parts, Split(host_and_port));
  return ListenOn(parts.host, parts.port);
}

absl::StatusOr<SocketAddress> LocalAddress(const Socket& socket) {
  SocketAddress address{.size = sizeof(address.storage)};
  if (getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address.storage), &address.size) != 0) {
    return SystemError("getsockname");
  }
  return address;
}

std::string PeerName(int fd) {
  SocketAddress address{.size = sizeof(address.storage)};
  getpeername(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.size);
  return ToString(address);
}

}  // namespace takt::net
