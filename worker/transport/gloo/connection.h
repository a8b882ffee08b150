// SPDX-License-Identifier: Apache-2.0
// One TCP connection to one peer: a Gloo context of two ranks with one pair, so that a failure ends
// this connection only. Gloo's exceptions stop here. Only files of gloo/ include this.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/net/socket.h"
#include "gloo/transport/context.h"
#include "gloo/transport/tcp/device.h"
#include "gloo/transport/unbound_buffer.h"
#include "worker/transport/abort_signal.h"
#include "worker/transport/transport.h"

namespace takt::transport {

// Messages of one slot are matched in order; slots do not wait for one another. Thread-safe.
class GlooConnection {
 public:
  // socket: connected to the peer; both ends have proved that they know the secret.  index: of this
  // rank among the two, 0 or 1.
  static absl::StatusOr<std::shared_ptr<GlooConnection>> Create(
      const TransportOptions& options, std::shared_ptr<gloo::transport::tcp::Device> device,
      int index, net::Socket socket, std::shared_ptr<AbortSignal> abort);

  // A piece of memory that is sent from or received into, one operation at a time. An abort ends
  // its wait.
  class Buffer {
   public:
    Buffer(std::shared_ptr<GlooConnection> connection, void* bytes, std::size_t size_bytes);

    // These start one operation of `size_bytes` from the buffer's beginning.
    absl::Status StartSend(std::uint64_t slot, std::size_t size_bytes);
    absl::Status StartRecv(std::uint64_t slot, std::size_t size_bytes);
    // These end it.  what: for the message.  kUnavailable, kDeadlineExceeded, kAborted: the
    // connection cannot be used any more.
    absl::Status FinishSend(absl::Duration timeout, const std::string& what);
    absl::Status FinishRecv(absl::Duration timeout, const std::string& what);

   private:
    std::shared_ptr<GlooConnection> connection_;
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer_;
    AbortSignal::Registration abort_hook_;  // last: gone before the buffer
  };

 private:
  GlooConnection(std::shared_ptr<AbortSignal> abort, int index)
      : abort_(std::move(abort)), index_(index) {}

  const std::shared_ptr<AbortSignal> abort_;
  const int index_;
  std::shared_ptr<gloo::transport::Context> context_;
};

}  // namespace takt::transport
