// SPDX-License-Identifier: Apache-2.0
// Accepts the connections of a rank's peers. An unknown client gets a nonce and nothing more.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/statusor.h"
#include "common/net/listener.h"
#include "common/net/socket.h"
#include "worker/transport/abort_signal.h"
#include "worker/transport/gloo/introduction.h"
#include "worker/transport/transport.h"

namespace takt::transport {

// Listens on options.data_address and data_port for the generation's life. It reads one Answer from
// a connection and nothing more. Thread-safe.
class PeerListener {
 public:
  // Errors: kUnavailable (cannot bind).
  static absl::StatusOr<std::unique_ptr<PeerListener>> Create(const TransportOptions& options,
                                                              std::shared_ptr<AbortSignal> abort);

  // The address for peers to dial: options.data_advertise, or where it listens ("127.0.0.1:4711").
  const std::string& address() const {
    return options_.data_advertise.empty() ? listener_.address() : options_.data_advertise;
  }

  // Returns the authenticated connection of `peer`, once.  Blocks: until it comes
  // (options.connect_timeout). Errors: kAborted; kDeadlineExceeded (names the address that claimed
  // to be the peer without the secret).
  absl::StatusOr<net::Socket> Accept(Rank peer);

 private:
  class Unproven;

  PeerListener(const TransportOptions& options, std::shared_ptr<AbortSignal> abort,
               net::Socket listening);

  // The listener's thread calls these: for a new connection, for one that has proved to be a
  // peer's, and for one that has failed to.
  std::unique_ptr<net::Connection> SendChallenge(net::Socket socket);
  void AddProven(Rank peer, net::Socket socket);
  void NoteImpostor(std::int64_t claimed_rank, const std::string& address);

  const TransportOptions options_;
  const std::shared_ptr<AbortSignal> abort_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Rank, net::Socket> proven_;             // guarded by mutex_
  std::map<std::int64_t, std::string> impostors_;  // guarded by mutex_; the last of each rank

  net::Listener listener_;  // last: its thread uses the rest
};

// Connects to the rank `listener` at `address` and proves the secret. Dials again whenever a
// connection breaks before that.  Blocks: until it is done (options.connect_timeout). Errors:
// kAborted; kPermissionDenied (the process that listens there lacks the secret); kDeadlineExceeded.
absl::StatusOr<net::Socket> DialPeer(const TransportOptions& options, Rank listener,
                                     const std::string& address, const AbortSignal& abort);

}  // namespace takt::transport
