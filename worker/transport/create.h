// SPDX-License-Identifier: Apache-2.0
// The one way by which a worker gets its transport.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/config/job_spec.h"
#include "worker/transport/transport.h"

namespace takt::transport {

// kShm, kGloo: that one for all peers.  kAuto: for each peer, when its first channel is opened,
// shared memory if both prove by a handshake that they see the same memory, else Gloo. All channels
// of a group of ranks are opened in one order that all ranks agree on (e.g. by sender, receiver,
// name), since each opening waits for its peer. rendezvous: borrowed for the transport's life.
// Errors: kInvalidArgument (FieldError): a kind that moves no host memory, or a data_address that
// cannot be bound.
absl::StatusOr<std::unique_ptr<Transport>> CreateTransport(TransportOptions options,
                                                           config::TransportKind kind,
                                                           Rendezvous& rendezvous);

}  // namespace takt::transport
