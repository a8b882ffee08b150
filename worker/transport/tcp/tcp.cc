// SPDX-License-Identifier: Apache-2.0
#include "worker/transport/tcp/tcp.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <xxhash.h>

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/net/socket.h"
#include "worker/transport/handshake.h"
#include "worker/transport/message_header.h"
#include "worker/transport/tcp/channel.h"
#include "worker/transport/tcp/peer_listener.h"
#include "worker/transport/tcp/timed_socket.h"

namespace takt::transport {

namespace {

// These settings only make a connection faster or its failures known earlier, so it is no error if
// one cannot be set.
void Tune(int fd) {
  const auto set = [fd](int level, int option, int value) {
    setsockopt(fd, level, option, &value, sizeof(value));
  };
  // The end of a message must not wait until the peer has acknowledged what is before it.
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  // Some channels are idle for hours, and firewalls forget such connections. If the peer's host
  // dies without closing them, that is noticed within two minutes.
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 60);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set(IPPROTO_TCP, TCP_KEEPCNT, 6);
}

class TcpTransport final : public Transport {
 public:
  TcpTransport(TransportOptions options, Rendezvous& rendezvous, std::shared_ptr<AbortSignal> abort)
      : options_(std::move(options)), rendezvous_(rendezvous), abort_(std::move(abort)) {}

  absl::StatusOr<std::unique_ptr<SendChannel>> OpenSend(Rank peer, const std::string& name,
                                                        std::size_t max_bytes) override {
    ASSIGN_OR_RETURN(TcpChannelOptions channel,
                     Open({.peer = peer,
                           .key = ChannelKey(options_.rank, peer, name),
                           .label = absl::StrCat(name, " to rank ", peer.value()),
                           .max_bytes = max_bytes}));
    return MakeTcpSender(std::move(channel));
  }

  absl::StatusOr<std::unique_ptr<RecvChannel>> OpenRecv(Rank peer, const std::string& name,
                                                        std::size_t max_bytes) override {
    ASSIGN_OR_RETURN(TcpChannelOptions channel,
                     Open({.peer = peer,
                           .key = ChannelKey(peer, options_.rank, name),
                           .label = absl::StrCat(name, " from rank ", peer.value()),
                           .max_bytes = max_bytes}));
    return MakeTcpReceiver(std::move(channel));
  }

  void Abort() override { abort_->Raise(); }

 private:
  struct Channel {
    Rank peer;
    std::string key;    // the same on both ends
    std::string label;  // for messages
    std::size_t max_bytes = 0;
  };

  absl::StatusOr<TcpChannelOptions> Open(Channel channel) {
    if (abort_->raised()) return AbortedStatus();
    const Opening mine{.channel = XXH3_64bits(channel.key.data(), channel.key.size()),
                       .max_bytes = channel.max_bytes};
    ASSIGN_OR_RETURN(PeerSocket connection, options_.rank < channel.peer
                                                ? AcceptFrom(channel.peer, mine)
                                                : Dial(channel, mine));
    if (connection.opening.max_bytes != channel.max_bytes)
      return DifferentSizes(channel.label, channel.max_bytes, connection.opening.max_bytes);
    Tune(connection.socket.fd());
    return TcpChannelOptions{.socket = std::move(connection.socket),
                             .max_bytes = channel.max_bytes,
                             .channel = std::move(channel.label),
                             .operation_timeout = options_.operation_timeout,
                             .abort = abort_};
  }

  // The lower of two ranks listens.
  absl::StatusOr<PeerSocket> AcceptFrom(Rank peer, const Opening& mine) {
    PeerListener* listener = nullptr;
    bool is_new = false;
    {
      std::lock_guard lock(mutex_);
      is_new = listener_ == nullptr;
      if (is_new) {
        ASSIGN_OR_RETURN(listener_,
                         PeerListener::Create(options_, abort_, ConnectionUse::kChannel));
      }
      listener = listener_.get();
    }
    if (is_new) RETURN_IF_ERROR(rendezvous_.Set(AddressKey(options_.rank), listener->address()));
    ASSIGN_OR_RETURN(PeerSocket accepted, listener->AcceptChannel(peer, mine.channel));
    // The dialer waits for this before it uses the channel.
    if (SendWhole(accepted.socket.fd(), BytesOf(mine))) return accepted;
    return Broken("opening a channel");
  }

  absl::StatusOr<PeerSocket> Dial(const Channel& channel, const Opening& mine) {
    ASSIGN_OR_RETURN(const std::string address, AddressOf(channel.peer));
    return DialChannel(
        options_,
        {.listener = channel.peer, .address = address, .opening = mine, .name = channel.label},
        *abort_);
  }

  // Asks the rendezvous once for each peer, however many channels lead there.
  absl::StatusOr<std::string> AddressOf(Rank peer) {
    {
      std::lock_guard lock(mutex_);
      const auto known = addresses_.find(peer);
      if (known != addresses_.end()) return known->second;
    }
    ASSIGN_OR_RETURN(std::string address,
                     AwaitKey(rendezvous_, AddressKey(peer), options_.connect_timeout, *abort_,
                              absl::StrCat("rank ", peer.value(), " to listen")));
    std::lock_guard lock(mutex_);
    addresses_[peer] = address;
    return address;
  }

  static std::string AddressKey(Rank listener) {
    return absl::StrCat("tcp/rank/", listener.value());
  }

  const TransportOptions options_;
  Rendezvous& rendezvous_;
  const std::shared_ptr<AbortSignal> abort_;
  std::mutex mutex_;
  std::unique_ptr<PeerListener> listener_;  // made for the first channel to a higher rank
  std::map<Rank, std::string> addresses_;   // of listeners
};

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> CreateTcpTransport(TransportOptions options,
                                                              Rendezvous& rendezvous,
                                                              std::shared_ptr<AbortSignal> abort) {
  // The address is tried now, because a rank that only dials would never notice that it cannot be
  // bound.
  if (const auto bound = net::ListenOn(options.data_address, "0"); !bound.ok()) {
    return InvalidField({.field = "data_address",
                         .value = options.data_address,
                         .rule = "must be an address of this host that can be bound",
                         .fix = absl::StrCat("set the worker's data address (",
                                             std::string(bound.status().message()), ")")});
  }
  return std::make_unique<TcpTransport>(std::move(options), rendezvous, std::move(abort));
}

}  // namespace takt::transport
