// SPDX-License-Identifier: Apache-2.0
// Describes a pipeline as chains of stages on ranks: one chain under loop and v, two under
// bidirectional, where every stage has two holders.
#pragma once

#include <vector>

#include "common/base/id.h"
#include "common/schedule/schedule.h"

namespace takt::schedule {

// One copy of one stage, and the microbatches that pass through it.
struct Holder {
  StageId stage;
  int rank = 0;
  int first_microbatch = 0, num_microbatches = 0;
  int previous = -1, next = -1;  // index of the holder of the neighbouring stages; -1 at the ends
};

// Returns them by chain, and within a chain by stage. Under bidirectional there are P stages.
// Microbatches 0 to ceil(M/2)-1 go down (stage s on rank s), and the others up (stage s on rank
// P-1-s).
std::vector<Holder> HoldersOf(Placement placement, int num_ranks, int num_stages,
                              int num_microbatches);

}  // namespace takt::schedule
