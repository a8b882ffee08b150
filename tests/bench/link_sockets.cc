// SPDX-License-Identifier: Apache-2.0
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/bench/links.h"

namespace takt::bench {

namespace {

absl::Status Failed(const char* what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

class SocketLink final : public Link {
 public:
  explicit SocketLink(net::Socket socket) : socket_(std::move(socket)) {}

  absl::Status Send(std::span<const std::byte> data) override {
    while (!data.empty()) {
      const ssize_t sent = send(socket_.fd(), data.data(), data.size(), MSG_NOSIGNAL);
      if (sent < 0) return Failed("send");
      data = data.subspan(static_cast<std::size_t>(sent));
    }
    return absl::OkStatus();
  }
  absl::Status Recv(std::span<std::byte> data) override {
    const ssize_t received = recv(socket_.fd(), data.data(), data.size(), MSG_WAITALL);
    if (received < 0) return Failed("recv");
    if (static_cast<std::size_t>(received) < data.size())
      return absl::UnavailableError("recv: the peer left");
    return absl::OkStatus();
  }

 private:
  const net::Socket socket_;
};

absl::StatusOr<net::Socket> AcceptLoopback(const LinkOptions& options) {
  ASSIGN_OR_RETURN(const net::Socket listening, net::ListenOn("127.0.0.1:0"));
  ASSIGN_OR_RETURN(const net::SocketAddress address, net::LocalAddress(listening));
  RETURN_IF_ERROR(options.rendezvous->Set("bare", net::ToString(address)));
  pollfd waiting{listening.fd(), POLLIN, 0};
  if (poll(&waiting, 1, static_cast<int>(absl::ToInt64Milliseconds(options.timeout))) != 1)
    return absl::DeadlineExceededError("the other rank did not connect");
  net::Socket socket(accept4(listening.fd(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!socket.valid()) return Failed("accept");
  return socket;
}

absl::StatusOr<net::Socket> DialLoopback(const LinkOptions& options) {
  ASSIGN_OR_RETURN(const std::string text, options.rendezvous->Wait("bare", options.timeout));
  ASSIGN_OR_RETURN(const net::SocketAddress address, net::ParseSocketAddress(text));
  net::Socket socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return Failed("socket");
  if (connect(socket.fd(), address.get(), address.size) != 0) return Failed("connect");
  return socket;
}

}  // namespace

absl::StatusOr<net::Socket> ConnectLoopback(const LinkOptions& options) {
  ASSIGN_OR_RETURN(net::Socket socket,
                   options.rank == Rank(0) ? AcceptLoopback(options) : DialLoopback(options));
  const int on = 1;
  setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return socket;
}

absl::StatusOr<std::unique_ptr<Link>> MakeSocketLink(const LinkOptions& options) {
  ASSIGN_OR_RETURN(net::Socket socket, ConnectLoopback(options));
  return std::make_unique<SocketLink>(std::move(socket));
}

}  // namespace takt::bench
