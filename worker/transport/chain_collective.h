// SPDX-License-Identifier: Apache-2.0
// Sums over a large group, each rank of which talks only to the ranks before and behind it.
//
// Sums go up the chain: a rank receives the sum of the ranks before it, adds its own values and
// passes the result on. The last rank has the sum of all, in rank order, and it goes back down. So
// the bits are those of channel_collective.h, with two connections for a rank instead of n - 1.
//   messages a rank sends: 2 for each slice_bytes (1 at the ends);  bytes: 2 * size (size there);
//   messages in a row before the last rank has the result: n - 1 more than slices, each way.
// Slices follow one another up the chain, so that the ranks add at the same time.
//
// If each rank wants only the sums of its own part, they go down no further than that rank. Each
// part that is not empty has messages of its own.
//   bytes a rank sends: size (0 at the end), and the parts of the ranks before it.
// In a ring, parts that every rank wants go round: each rank passes on what it got last.
//   bytes a rank sends: all parts but that of the rank behind it.
// What only the root wants passes towards it from both sides. A message with its length comes
// before each rank's part, since the ranks between do not know that.
//   bytes a rank sends: its own, those of the ranks that are further from the root on its side, and
//   8 for each.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/transport/collective.h"
#include "worker/transport/transport.h"

namespace takt::transport {

// Does what CreateCollective does for a LargeGroup of neighbours, of at least two ranks.
absl::StatusOr<std::unique_ptr<Collective>> CreateChainCollective(Transport& transport,
                                                                  CollectiveOptions options);

}  // namespace takt::transport
