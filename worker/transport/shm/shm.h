// SPDX-License-Identifier: Apache-2.0
// Joins ranks on one host: each channel is a ring in shared memory, which the sender makes and
// announces through the rendezvous.
//
//   sender                                   receiver
//   make memory, write token, phase 0
//   Set("shm/" + channel) ------------------> attach, compare token
//                                            write proof of the secret, phase 1
//   check it, write own proof, phase 2 -----> check it
//
// The proofs pass through the memory itself, so an end that answers there shares the memory and
// knows the generation's secret.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/transport/abort_signal.h"
#include "worker/transport/transport.h"

namespace takt::transport {

// rendezvous: borrowed for the transport's life.  abort: raised by Abort; may be shared with other
// transports of the rank.
std::unique_ptr<Transport> CreateShmTransport(TransportOptions options, Rendezvous& rendezvous,
                                              std::shared_ptr<AbortSignal> abort);

// Returns whether this rank and `peer` see the same memory. Both ask at the same time and get the
// same answer. Blocks: until the peer asks (options.connect_timeout).
absl::StatusOr<bool> SharesMemory(const TransportOptions& options, Rendezvous& rendezvous,
                                  Rank peer, AbortSignal& abort);

}  // namespace takt::transport
