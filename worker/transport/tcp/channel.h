// SPDX-License-Identifier: Apache-2.0
// One direction of messages over a connection that nothing else uses. The threads that send and
// receive make the system calls themselves, straight from and into the caller's memory. So a
// message wakes one thread, and no thread of the transport takes a core from those that compute.
//
// A message is a MessageHeader and its data, without a gap.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/net/socket.h"
#include "worker/transport/abort_signal.h"
#include "worker/transport/transport.h"

namespace takt::transport {

struct TcpChannelOptions {
  net::Socket socket;         // a connected stream
  std::size_t max_bytes = 0;  // the largest message
  std::string channel;        // for messages: "F to rank 1"
  // The longest wait. A receive waits once for a message and once for the rest of a large one.
  absl::Duration operation_timeout;
  // An abort ends the waits of this end only. The other end hears of it when the channel ends, so
  // it does not report a peer that left before this rank has reported why.
  std::shared_ptr<AbortSignal> abort;
};

// Each makes one end of a channel, which owns the socket. Its order and errors are those of the
// channels of transport.h.
std::unique_ptr<SendChannel> MakeTcpSender(TcpChannelOptions options);
std::unique_ptr<RecvChannel> MakeTcpReceiver(TcpChannelOptions options);

}  // namespace takt::transport
