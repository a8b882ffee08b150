// SPDX-License-Identifier: Apache-2.0
// This is ZB-1p: the automatic scheduler of the paper (zero_bubble_heuristic.h) in the memory of
// 1f1b.
//
// The bubble at F = I = W is P-1, as in zb-h1. At most P microbatches are in flight, or the given
// limit.
#include "common/schedule/generators/generators.h"
#include "common/schedule/generators/zero_bubble_heuristic.h"

namespace takt::schedule {
namespace {

constexpr Family kFamily{.name = "zb-1p",
                         .summary = "searched for given costs, in the memory of 1f1b",
                         .reference = "Qi et al. 2023, arXiv:2401.10241",
                         .bubble = "searched; P-1 at F = I = W = 1",
                         .peak = "P",
                         .idea =
                             "The automatic scheduler of the zero-bubble paper: eight variants of "
                             "a greedy rule, simulated with the given costs, the smallest span of "
                             "a rank wins; each rank holds what 1f1b's first rank does.",
                         .sizes = "any P and M, V = 1; costs matter",
                         .care =
                             "The paper keeps the variant with the smallest span, which needs a "
                             "step without a barrier; this one keeps the smallest makespan.",
                         .splits_backward = true,
                         .uses_costs = true,
                         .uses_memory = true};

absl::StatusOr<Schedule> Generate(const GenerateOptions& options) {
  return BuildZeroBubbleHeuristic(kFamily, options, options.memory.value_or(options.num_ranks));
}

}  // namespace

Generator Zb1p() { return {kFamily, &Generate}; }

}  // namespace takt::schedule
