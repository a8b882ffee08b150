// SPDX-License-Identifier: Apache-2.0
// Accepts the connections of a rank's peers. An unknown client gets a nonce and nothing more.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/net/listener.h"
#include "common/net/socket.h"
#include "worker/transport/abort_signal.h"
#include "worker/transport/tcp/introduction.h"
#include "worker/transport/transport.h"

namespace takt::transport {

// Says what a connection carries: all messages between two ranks, or one channel, which its dialer
// names by an Opening.
enum class ConnectionUse { kPeer, kChannel };

// A connection between two ranks that have proved themselves to each other. Its socket is
// non-blocking.
struct PeerSocket {
  net::Socket socket;
  Opening opening;  // the other rank's, if the connection carries one channel
};

// Listens on options.data_address and data_port for the generation's life. From each connection it
// reads one Answer, and one Opening if connections carry a channel each, and nothing more.
// Thread-safe.
class PeerListener {
 public:
  // Errors: kUnavailable (cannot bind).
  static absl::StatusOr<std::unique_ptr<PeerListener>> Create(
      const TransportOptions& options, std::shared_ptr<AbortSignal> abort,
      ConnectionUse use = ConnectionUse::kPeer);

  // The address for peers to dial: options.data_advertise, or where it listens ("127.0.0.1:4711").
  const std::string& address() const {
    return options_.data_advertise.empty() ? listener_.address() : options_.data_advertise;
  }

  // Returns the authenticated connection of `peer`, once.  Blocks: until it comes
  // (options.connect_timeout). Errors: kAborted; kDeadlineExceeded (names the address that claimed
  // to be the peer without the secret).
  absl::StatusOr<net::Socket> Accept(Rank peer);
  // Does the same for the connection by which `peer` opens one channel.
  absl::StatusOr<PeerSocket> AcceptChannel(Rank peer, std::uint64_t channel);

 private:
  class Unproven;

  PeerListener(const TransportOptions& options, std::shared_ptr<AbortSignal> abort,
               ConnectionUse use, net::Socket listening);

  // The listener's thread calls these: for a new connection, for one that has proved to be a
  // peer's, and for one that has failed to.
  std::unique_ptr<net::Connection> SendChallenge(net::Socket socket);
  void AddProven(Rank peer, PeerSocket connection);
  void NoteImpostor(std::int64_t claimed_rank, const std::string& address);

  const TransportOptions options_;
  const std::shared_ptr<AbortSignal> abort_;
  const ConnectionUse use_;

  std::mutex mutex_;
  std::condition_variable changed_;
  // By peer and channel. The channel is 0 where a connection carries all messages. Guarded by
  // mutex_.
  std::map<std::pair<Rank, std::uint64_t>, PeerSocket> proven_;
  std::map<std::int64_t, std::string> impostors_;  // guarded by mutex_; the last of each rank

  net::Listener listener_;  // last: its thread uses the rest
};

// Connects to the rank `listener` at `address` and proves the secret. Dials again whenever a
// connection breaks before that.  Blocks: until it is done (options.connect_timeout). Errors:
// kAborted; kPermissionDenied (the process that listens there lacks the secret); kDeadlineExceeded.
absl::StatusOr<net::Socket> DialPeer(const TransportOptions& options, Rank listener,
                                     const std::string& address, const AbortSignal& abort);

struct DialOptions {
  Rank listener;
  std::string address;
  Opening opening;   // names the channel
  std::string name;  // of the channel, for messages: "F to rank 0"
};
// Does the same for one channel, and waits until the listener has opened it. Dials again if the
// connection breaks before that.  Blocks, errors: as DialPeer; kUnavailable if the listener answers
// with what is no Opening of this channel.
absl::StatusOr<PeerSocket> DialChannel(const TransportOptions& options, const DialOptions& dial,
                                       const AbortSignal& abort);

}  // namespace takt::transport
