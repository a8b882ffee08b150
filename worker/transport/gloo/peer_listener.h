// SPDX-License-Identifier: Apache-2.0
// Where the peers of one rank connect, and where strangers get no further than a nonce.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "worker/transport/abort_signal.h"
#include "worker/transport/gloo/introduction.h"
#include "worker/transport/gloo/socket.h"
#include "worker/transport/transport.h"

namespace takt::transport {

// Listens on options.data_address for the generation's life. Of a connection it reads one Answer
// and nothing more; one that does not prove itself in kIntroductionTimeout is closed. At most
// kMaxStrangers are heard at once: one more closes the oldest, so that whoever holds connections
// open keeps no peer out, whose introduction takes one round trip. Thread-safe.
class PeerListener {
 public:
  static constexpr absl::Duration kIntroductionTimeout = absl::Seconds(10);
  static constexpr int kMaxStrangers = 128;

  // Errors: kUnavailable (cannot bind).
  static absl::StatusOr<std::unique_ptr<PeerListener>> Create(const TransportOptions& options,
                                                              std::shared_ptr<AbortSignal> abort);
  ~PeerListener();

  // What peers dial: "127.0.0.1:4711".
  const std::string& address() const { return address_; }

  // The connection that `peer` made and proved; each is given once.  Blocks: until it comes
  // (options.connect_timeout). Errors: kAborted; kPermissionDenied (someone that claimed to be the
  // peer did not know the secret, and nobody else came); kDeadlineExceeded.
  absl::StatusOr<Socket> Accept(Rank peer);

 private:
  struct Stranger {
    Socket socket;
    Challenge challenge;
    std::int64_t deadline = 0;  // MonotonicNanos
    Answer answer;
    std::size_t received_bytes = 0;  // of the answer
  };
  using Strangers = std::list<Stranger>;

  PeerListener(const TransportOptions& options, std::shared_ptr<AbortSignal> abort, Socket listener,
               Socket wake, std::string address);

  void Run();
  // False: the process has no descriptor left for one more.
  bool Greet();
  // Hears what a stranger has to say; true: it needs no more attention.
  bool Hear(Stranger& stranger);
  void Refuse(const Stranger& stranger, const char* why);

  const TransportOptions options_;
  const std::shared_ptr<AbortSignal> abort_;
  const std::string address_;
  // The thread's alone.
  const Socket listener_, wake_;
  Strangers strangers_;  // oldest first
  std::int64_t num_refused_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;             // guarded by mutex_
  std::map<Rank, Socket> proven_;  // guarded by mutex_
  std::set<Rank> impersonated_;    // guarded by mutex_: of ranks that exist

  std::thread thread_;
};

// Connects to `listener` at `address`, which knows the secret as we do. Dials again whenever a
// connection breaks first.  Blocks: until it is done (options.connect_timeout). Errors: kAborted;
// kPermissionDenied (who listens there does not know our secret); kDeadlineExceeded.
absl::StatusOr<Socket> DialPeer(const TransportOptions& options, Rank listener,
                                const std::string& address, const AbortSignal& abort);

}  // namespace takt::transport
