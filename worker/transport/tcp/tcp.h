// SPDX-License-Identifier: Apache-2.0
// Joins ranks on different hosts: TCP through plain sockets, with a connection for each channel.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/transport/abort_signal.h"
#include "worker/transport/transport.h"

namespace takt::transport {

// Binds options.data_address only. The lower of two ranks listens and tells where once, under one
// key for all peers. rendezvous: borrowed for the transport's life.  abort: raised by Abort; may be
// shared with other transports of the rank. Errors: kInvalidArgument (data_address cannot be
// bound).
absl::StatusOr<std::unique_ptr<Transport>> CreateTcpTransport(TransportOptions options,
                                                              Rendezvous& rendezvous,
                                                              std::shared_ptr<AbortSignal> abort);

}  // namespace takt::transport
