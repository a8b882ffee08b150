// SPDX-License-Identifier: Apache-2.0
// Names and orders what the writers of timelines show.
#pragma once

#include <string>
#include <vector>

#include "common/trace/timeline.h"

namespace takt::trace {

// Returns "rank 3", or with several chains "rank 3 (pp 1, dp 1)" (mesh::PlaceName).
std::string RankName(const JobTrace& trace, int rank);

// The lanes in the order in which they are shown: compute first.
std::vector<LaneId> LanesInOrder(const program::Program& program);

// "peer 2", "link 2", "data". A label is short enough for the idle time that it stands on.
std::string IdleName(const Idle& idle);

// For a tooltip: "rank 2 had not made the message yet".
std::string_view Meaning(Cause cause);

// "step 7", "steps 5 to 8". Steps with gaps are listed, "steps 46, 48, 50", or if they are many,
// counted: "50 steps from 46 to 144".
std::string StepsName(const Timeline& timeline);

// "job kjv-gpt, steps 5 to 8, clocks within 0.012 ms".
std::string Title(const Timeline& timeline);

}  // namespace takt::trace
