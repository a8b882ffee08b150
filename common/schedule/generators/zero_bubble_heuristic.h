// SPDX-License-Identifier: Apache-2.0
// The automatic scheduler of Qi et al. 2023, sec. 3.1 and appendix: a heuristic with three
// switches. It tries all 8 variants on the given costs.
#pragma once

#include "common/schedule/generate.h"

namespace takt::schedule {

// Returns the variant with the shortest makespan; of those the one with the shortest span of a
// rank; of those the first. (The paper minimises the span, which needs steps without a barrier.) At
// most `limit` (at least 1) microbatches are in flight on a rank, counted from F to W. It uses
// costs by stage and latency by link, but not bytes, which are not known here.
Schedule BuildZeroBubbleHeuristic(const Family& family, const GenerateOptions& options, int limit);

}  // namespace takt::schedule
