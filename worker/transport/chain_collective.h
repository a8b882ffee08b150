// SPDX-License-Identifier: Apache-2.0
// Sums over a large group, each rank of which talks only to the ranks before and behind it.
//
// Sums go up the chain: a rank receives the sum of the ranks before it, adds its own values and
// passes the result on. The last rank has the sum of all, in rank order, and it goes back down. So
// the bits are those of channel_collective.h, with two connections for a rank instead of n - 1.
//   messages a rank sends: 2 for each slice_bytes (1 at the ends);  bytes: 2 * size (size there);
//   messages in a row before the last rank has the result: n - 1 more than slices, each way.
// Slices follow one another up the chain, so that the ranks add at the same time.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/transport/collective.h"
#include "worker/transport/transport.h"

namespace takt::transport {

// Does what CreateCollective does, for at least two ranks. The group only sums: Pass, and what is
// made of it, returns kUnimplemented.
absl::StatusOr<std::unique_ptr<Collective>> CreateChainCollective(Transport& transport,
                                                                  CollectiveOptions options);

}  // namespace takt::transport
