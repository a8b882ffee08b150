// SPDX-License-Identifier: Apache-2.0
// Sums over a group of ranks on point-to-point channels, the same bits on every rank and in every
// run.
//
// Up to kDirectBytes: everyone sends everything to everyone and adds in rank order.
//   messages a rank sends: n - 1;  bytes: (n - 1) * size.
// Above, in rounds of at most n * kSliceBytes: rank r gets everyone's slice r and adds them in rank
// order, then hands the sum to everyone (direct reduce-scatter, all-gather).
//   messages a rank sends: 2 * (n - 1) a round;  bytes: (size - own slices) + (n - 1) * own slices,
//   which is 2 * (n - 1) / n * size when n divides it.
// Pairs of ranks meet in the rounds of a tournament (circle method), the lower rank of a pair sends
// first: no two wait for each other, however small the transport's buffers.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/engine/compute.h"
#include "worker/transport/transport.h"

namespace takt::transport {

struct CollectiveOptions {
  std::string
      name;  // of the group; the same on its ranks, distinct among groups that share two ranks
  std::vector<Rank> ranks;      // in the order of summation; at least one
  int index = 0;                // ours in `ranks`
  std::int64_t generation = 0;  // goes into the tags
};

// transport: borrowed for the collective's life; null allowed in a group of one.
// Blocks: until all ranks of the group do the same. Groups are created in one order on all ranks.
absl::StatusOr<std::unique_ptr<engine::Collective>> CreateCollective(Transport* transport,
                                                                     CollectiveOptions options);

inline constexpr std::size_t kDirectBytes = 32 * 1024;
inline constexpr std::size_t kSliceBytes = 512 * 1024;

// Whom `index` of `size` meets in `round` (0 .. NumRounds-1); -1: nobody.
int TournamentPeer(int size, int round, int index);
int TournamentRounds(int size);

}  // namespace takt::transport
