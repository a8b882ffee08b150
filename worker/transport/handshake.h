// SPDX-License-Identifier: Apache-2.0
// Lets two ends of a connection find each other and prove that they belong to the same generation
// of the same job.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/transport/abort_signal.h"
#include "worker/transport/transport.h"

namespace takt::transport {

// Returns 256 bits from the kernel's random source, which never repeat.
using Nonce = std::array<std::byte, 32>;
Nonce RandomNonce();

// Returns the HMAC-SHA256 of job, generation and `message` under options.secret. It can be made
// only with this generation's secret, and one made for another message is refused.
using Proof = std::array<std::byte, 32>;
Proof Prove(const TransportOptions& options, std::string_view message);

// Compares in constant time.
bool SameProof(const Proof& a, const Proof& b);

// Formats as "0-1/F": from, to, name.
std::string ChannelKey(Rank from, Rank to, std::string_view name);

// Is Rendezvous::Wait, but `abort` ends it with kAborted, well within a second. what: for the
// message, e.g. "rank 1 to open channel F".
absl::StatusOr<std::string> AwaitKey(Rendezvous& rendezvous, const std::string& key,
                                     absl::Duration timeout, AbortSignal& abort,
                                     std::string_view what);
// Does the same for several keys, in one call where that can be, and returns their values in order.
absl::StatusOr<std::vector<std::string>> AwaitKeys(Rendezvous& rendezvous,
                                                   const std::vector<std::string>& keys,
                                                   absl::Duration timeout, AbortSignal& abort,
                                                   std::string_view what);

// The statuses of the interface, which all transports word alike.
absl::Status AbortedStatus();
absl::Status TimeoutStatus(std::string_view what, absl::Duration timeout);
// Returns kUnavailable for what `peer` told by the rendezvous and nobody can read, so that this
// rank is not blamed for it. what: names it, e.g. "where it listens".
absl::Status UnreadableStatus(Rank peer, const std::string& what, const std::string& told);

std::string ToHex(std::string_view bytes);
absl::StatusOr<std::string> FromHex(std::string_view hex);

template <class Byte, std::size_t n>
std::string_view AsText(const std::array<Byte, n>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), n};
}

}  // namespace takt::transport
