// SPDX-License-Identifier: Apache-2.0
// The ways of passing messages over TCP that `takt-bench transports` compares.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/net/socket.h"
#include "worker/transport/transport.h"

namespace takt::bench {

// Passes messages in both directions between two processes, which both know the sizes. Thread: one
// caller at a time.
class Link {
 public:
  virtual ~Link() = default;
  // Blocks: until the data may be changed.  Errors: as transport::SendChannel, as far as this link
  // can tell.
  virtual absl::Status Send(std::span<const std::byte> data) = 0;
  // Blocks: until `data` is filled.
  virtual absl::Status Recv(std::span<std::byte> data) = 0;
};

struct LinkOptions {
  Rank rank;                                    // 0 or 1
  transport::Rendezvous* rendezvous = nullptr;  // borrowed for the link's life
  std::size_t max_bytes = 0;
  absl::Duration timeout;  // of one call, if the link has timeouts
};

struct LinkKind {
  std::string_view name;
  // The files and folders of the source tree whose lines are counted.
  std::vector<std::string_view> sources;
  bool is_bare = false;  // it has no checks and no authentication, so it is a bound for the others
  absl::StatusOr<std::unique_ptr<Link>> (*make)(const LinkOptions& options) = nullptr;
};

struct Links {
  struct LeftOut {
    std::string name, why;
  };
  std::vector<LinkKind> kinds;    // that this build and this kernel have
  std::vector<LeftOut> left_out;  // the others
};
Links FindLinks();

// These are transports of the worker.
absl::StatusOr<std::unique_ptr<Link>> MakeGlooLink(const LinkOptions& options);
absl::StatusOr<std::unique_ptr<Link>> MakeTcpLink(const LinkOptions& options);
// Makes a link over sockets on which the caller's thread waits.
absl::StatusOr<std::unique_ptr<Link>> MakeSocketLink(const LinkOptions& options);
// Makes a link over sockets from which a thread with epoll receives, as event loops do.
absl::StatusOr<std::unique_ptr<Link>> MakeEpollLink(const LinkOptions& options);
// Makes a link over sockets through io_uring. Only builds that have liburing define these two.
absl::StatusOr<std::unique_ptr<Link>> MakeUringLink(const LinkOptions& options);
absl::Status FindUring();  // returns an error if the kernel refuses it
// Makes a link by UCX over TCP. Only builds that have libucx-dev define this.
absl::StatusOr<std::unique_ptr<Link>> MakeUcxLink(const LinkOptions& options);

// Connects the two ranks over the loopback interface. Returns a blocking socket.
absl::StatusOr<net::Socket> ConnectLoopback(const LinkOptions& options);

}  // namespace takt::bench
