// SPDX-License-Identifier: Apache-2.0
// Summarizes the newest step of a timeline in a few bytes for each rank, for pictures of thousands
// of ranks.
#pragma once

#include <string>

#include "common/trace/timeline.h"

namespace takt::trace {

// Cuts the newest step into `num_bins` equal parts and names, for each rank and part, what took
// most of it. num_bins: at least 1. Returns JSON:
//   {"step": 7, "seconds": 0.31, "num_bins": 240, "causes": ["peer", ...],
//    "ranks": [["rank 0", "FFF1BB2...", compute seconds, [idle seconds by cause...]]...]}
// Letters: F I W B S T (of a pair of F and B: B), x (norms, optimizer, other work of the compute
// lane), 1 to 7 (idle, by the numbers of Cause), . (none of them).
std::string OverviewData(const Timeline& timeline, int num_bins);

}  // namespace takt::trace
