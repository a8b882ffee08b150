// SPDX-License-Identifier: Apache-2.0
// A Collective on the point-to-point channels of a transport.
//
// Up to kDirectBytes, every rank sends all its values to every other rank and adds in rank order.
//   messages a rank sends: n - 1;  bytes: (n - 1) * size.
// Larger sums take rounds of at most n * slice_bytes: rank r receives slice r of every rank, adds
// them in rank order and sends the sum to every rank (direct reduce-scatter, all-gather).
//   messages a rank sends: 2 * (n - 1) a round;  bytes: (size - own slices) + (n - 1) * own slices,
//   which is 2 * (n - 1) / n * size when n divides it.
// A sum of which each rank gets a part takes only the first half of each such round, with up to
// slice_bytes of each part.
//   messages a rank sends: at most n - 1 a round;  bytes: size - own part.
// Where each rank has t terms (Collective::Terms), their slices are 1 / t as long. All terms are
// sent, and the sum comes back once.
// Bytes that pass unchanged go from their rank to each that wants them, in messages of at most
// slice_bytes.
// A large group may be a chain instead (chain_collective.h).
// Pairs of ranks exchange in the rounds of a tournament (circle method), and the lower rank of a
// pair sends first. So no two ranks wait for each other, however small the buffers of the
// transport.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/transport/collective.h"
#include "worker/transport/transport.h"

namespace takt::transport {

// The collective borrows `transport` for its life; it may be null in a group of one.
// Blocks: until all ranks of the group do the same. Groups are created in one order on all ranks.
absl::StatusOr<std::unique_ptr<Collective>> CreateCollective(Transport* transport,
                                                             CollectiveOptions options);

inline constexpr std::size_t kDirectBytes = 32 * 1024;

// Returns the peer of `index` among `size` ranks in `round` (0 .. TournamentRounds-1); -1: it has
// none.
int TournamentPeer(int size, int round, int index);
int TournamentRounds(int size);

}  // namespace takt::transport
