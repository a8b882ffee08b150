// SPDX-License-Identifier: Apache-2.0
#include "common/schedule/holders.h"

namespace takt::schedule {

std::vector<Holder> HoldersOf(Placement placement, int num_ranks, int num_stages,
                              int num_microbatches) {
  const bool two_ways = placement == Placement::kBidirectional;
  const int num_down = two_ways ? (num_microbatches + 1) / 2 : num_microbatches;
  std::vector<Holder> holders;
  for (int up = 0; up <= (two_ways ? 1 : 0); ++up) {
    const int base = up * num_stages;
    for (int s = 0; s < num_stages; ++s) {
      const int rank = !two_ways ? RankOfStage(placement, num_ranks, StageId(s)).value()
                       : up == 1 ? num_ranks - 1 - s
                                 : s;
      holders.push_back({.stage = StageId(s),
                         .rank = rank,
                         .first_microbatch = up == 1 ? num_down : 0,
                         .num_microbatches = up == 1 ? num_microbatches - num_down : num_down,
                         .previous = s > 0 ? base + s - 1 : -1,
                         .next = s + 1 < num_stages ? base + s + 1 : -1});
    }
  }
  return holders;
}

}  // namespace takt::schedule
