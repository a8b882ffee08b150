// SPDX-License-Identifier: Apache-2.0
// The way in which ranks of one generation pass messages. These implement it: shm (processes of one
// host), tcp (plain sockets), gloo (TCP as older programs use it), the choice of one for
// each peer (selection/create.h), the transports of device memory (device_transport.h), which are
// nccl, ipc and staged, and for tests the hub and the shared device of tests/testing. shm,
// gloo, tcp, the choice, nccl, ipc and the hub pass one suite (tests/conformance); staged and the
// shared device have tests beside them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/id.h"
#include "worker/backend/stream.h"
#include "worker/transport/abort_signal.h"

namespace takt::transport {

// Travels with every message. The receiver compares it with the tag that it expects, so a message
// of another generation, step or place in the schedule is never taken for the right one.
struct MessageTag {
  std::int64_t generation = 0;
  std::int64_t step = 0;
  std::int32_t stage = 0;
  std::int32_t microbatch = 0;
  std::int32_t direction = 0;  // program::Direction, or a collective's own numbers
  std::int32_t sequence = 0;   // position among messages of one collective; 0 for p2p
  bool operator==(const MessageTag&) const = default;
};

// One direction between two ranks. Messages arrive whole and in the order sent. Thread: one caller
// at a time on each end.
class SendChannel {
 public:
  virtual ~SendChannel() = default;
  // Hands one message over.  data: host memory (device memory for a transport of that), untouched
  // by the caller until the call returns, or until stream() is done with it. Blocks: until the
  // receiver took it or it lies in a buffer of the transport; never after Transport::Abort. Errors:
  // kUnavailable (peer left), kDeadlineExceeded (options.operation_timeout), kAborted
  // (Transport::Abort).
  virtual absl::Status Send(const MessageTag& tag, std::span<const std::byte> data) = 0;
  // The stream on which Send leaves the rest of its work, behind what the stream was given before.
  // `data` is the caller's again once that work is done. Null: all is done on return.
  virtual backend::Stream* stream() { return nullptr; }
};

class RecvChannel {
 public:
  virtual ~RecvChannel() = default;
  // Takes the next message into `data`.  Blocks: until it came.
  // Errors: as Send; kInternal if its tag or size is not the one expected (names both).
  virtual absl::Status Recv(const MessageTag& tag, std::span<std::byte> data) = 0;
  // The stream on which Recv leaves the rest of its work: the message is in `data` when that work
  // is done. Null: it is there on return.
  virtual backend::Stream* stream() { return nullptr; }
};

struct TransportOptions {
  Rank rank;
  int num_ranks = 1;
  std::string job;
  std::int64_t generation = 0;
  std::string secret;          // 32 bytes; proves that a connection belongs to this generation
  std::string data_address;    // TCP: the interface to bind
  int data_port = 0;           // TCP: the port to bind; 0: any free one
  std::string data_advertise;  // TCP: what peers dial, "ADDRESS:PORT"; empty: what is bound
  // TCP goes through tcp/. False: through gloo/, as with programs of protocol 4. It is the same on
  // all ranks.
  bool plain_sockets = false;
  // gloo/: a rank that listens tells so once, under one key for all peers, and the two ends of a
  // channel agree on its size over their connection. False: with a key for each peer, and two for
  // each channel, as programs of protocol 3 do. It is the same on all ranks.
  bool sparse_meeting = false;
  absl::Duration connect_timeout = absl::Seconds(30);
  absl::Duration operation_timeout = absl::Minutes(5);
};

// Lets ranks find each other (takt.v1.RendezvousService, or a map in tests). Thread-safe.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  virtual absl::Status Set(const std::string& key, const std::string& value) = 0;
  // Blocks until the key is set. Errors: kDeadlineExceeded, kAborted (older generation),
  // kUnavailable.
  virtual absl::StatusOr<std::string> Wait(const std::string& key, absl::Duration timeout) = 0;
  // Does the same for several keys, and returns the values in the order asked. An implementation
  // waits for many at once if it can, so `timeout` holds for any number of them.
  virtual absl::StatusOr<std::vector<std::string>> WaitAll(const std::vector<std::string>& keys,
                                                           absl::Duration timeout) {
    std::vector<std::string> values;
    for (const std::string& key : keys) {
      absl::StatusOr<std::string> value = Wait(key, timeout);
      if (!value.ok()) return value.status();
      values.push_back(*std::move(value));
    }
    return values;
  }
  // Is WaitAll, but may end with an error when `abort` is raised. A transport waits at most
  // longest_wait() at a time: longer where `abort` does end a wait, for each wait costs a call.
  virtual absl::StatusOr<std::vector<std::string>> WaitAllUnless(
      AbortSignal& /*abort*/, const std::vector<std::string>& keys, absl::Duration timeout) {
    return WaitAll(keys, timeout);
  }
  virtual absl::Duration longest_wait() const { return absl::Milliseconds(250); }
};

// Endpoints of one rank. Channels borrow it and are closed before it. Thread-safe, except that each
// channel has one caller.
class Transport {
 public:
  virtual ~Transport() = default;
  // `name` distinguishes channels between the same two ranks; both ends open the same name, in any
  // order. max_bytes: the largest message that will pass.  Blocks: until the peer opened its end
  // (options.connect_timeout).
  virtual absl::StatusOr<std::unique_ptr<SendChannel>> OpenSend(Rank peer, const std::string& name,
                                                                std::size_t max_bytes) = 0;
  virtual absl::StatusOr<std::unique_ptr<RecvChannel>> OpenRecv(Rank peer, const std::string& name,
                                                                std::size_t max_bytes) = 0;
  // Every call in progress and every later one returns kAborted soon (well under a second), and the
  // streams of its channels come to an end. Safe from any thread, idempotent.
  virtual void Abort() = 0;
  // Returns an error if work that was left on streams may have ended early, as if it were done. Ask
  // after waiting for a stream and before using its results.
  virtual absl::Status status() const { return absl::OkStatus(); }
};

}  // namespace takt::transport
