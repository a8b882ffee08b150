// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/links.h"

#include <utility>

#include "common/base/status.h"
#include "tests/bench/process_group.h"
#include "worker/transport/selection/create.h"

namespace takt::bench {

namespace {

// Two channels of one of our transports.
class ChannelLink final : public Link {
 public:
  static absl::StatusOr<std::unique_ptr<Link>> Create(
      std::unique_ptr<transport::Transport> transport, const LinkOptions& options) {
    auto link = std::make_unique<ChannelLink>();
    const Rank peer(1 - options.rank.value());
    for (const bool sending : {options.rank == Rank(0), options.rank != Rank(0)}) {
      if (sending) {
        ASSIGN_OR_RETURN(link->out_, transport->OpenSend(peer, "bench", options.max_bytes));
      } else {
        ASSIGN_OR_RETURN(link->in_, transport->OpenRecv(peer, "bench", options.max_bytes));
      }
    }
    link->transport_ = std::move(transport);
    return link;
  }

  absl::Status Send(std::span<const std::byte> data) override { return out_->Send({}, data); }
  absl::Status Recv(std::span<std::byte> data) override { return in_->Recv({}, data); }

 private:
  std::unique_ptr<transport::Transport> transport_;  // the channels borrow it
  std::unique_ptr<transport::SendChannel> out_;
  std::unique_ptr<transport::RecvChannel> in_;
};

absl::StatusOr<std::unique_ptr<Link>> MakeChannelLink(const LinkOptions& options,
                                                      bool plain_sockets) {
  transport::TransportOptions own = LoopbackOptions(options.rank, 2);
  own.plain_sockets = plain_sockets;
  own.sparse_meeting = true;
  own.operation_timeout = options.timeout;
  ASSIGN_OR_RETURN(
      std::unique_ptr<transport::Transport> transport,
      transport::CreateTransport(own, config::TransportKind::kTcp, *options.rendezvous));
  return ChannelLink::Create(std::move(transport), options);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Link>> MakeGlooLink(const LinkOptions& options) {
  return MakeChannelLink(options, false);
}

absl::StatusOr<std::unique_ptr<Link>> MakeTcpLink(const LinkOptions& options) {
  return MakeChannelLink(options, true);
}

Links FindLinks() {
  Links links;
  links.kinds = {{"gloo", {"worker/transport/gloo"}, false, &MakeGlooLink},
                 {"tcp",
                  {"worker/transport/tcp/channel.cc", "worker/transport/tcp/channel.h",
                   "worker/transport/tcp/tcp.cc", "worker/transport/tcp/tcp.h"},
                  false,
                  &MakeTcpLink},
                 {"sockets", {"tests/bench/link_sockets.cc"}, true, &MakeSocketLink},
                 {"epoll", {"tests/bench/link_epoll.cc"}, true, &MakeEpollLink}};
#ifdef TAKT_BENCH_URING
  if (const absl::Status status = FindUring(); status.ok()) {
    links.kinds.push_back({"io_uring", {"tests/bench/link_uring.cc"}, true, &MakeUringLink});
  } else {
    links.left_out.push_back({"io_uring", std::string(status.message())});
  }
#else
  links.left_out.push_back({"io_uring", "liburing-dev was not there when this was built"});
#endif
#ifdef TAKT_BENCH_UCX
  links.kinds.push_back({"ucx", {"tests/bench/link_ucx.cc"}, false, &MakeUcxLink});
#else
  links.left_out.push_back({"ucx", "libucx-dev was not there when this was built"});
#endif
  return links;
}

}  // namespace takt::bench
