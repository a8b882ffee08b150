// SPDX-License-Identifier: Apache-2.0
// The automatic scheduler of Qi et al. 2023, sec. 3.1 and appendix: a heuristic with three switches
// whose 8 variants are tried on the costs at hand.
#pragma once

#include <string_view>

#include "common/schedule/generate.h"

namespace takt::schedule {

// The variant with the shortest makespan, then the shortest span of a rank (the paper minimises the
// span, which takes steps without a barrier), then the first. At most `limit` (at least 1)
// microbatches are in flight on a rank, counted from F to W. Costs by stage and latency by link;
// bytes are not known here.
Schedule BuildAutomatic(std::string_view name, const GenerateOptions& options, int limit);

}  // namespace takt::schedule
