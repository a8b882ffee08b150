// SPDX-License-Identifier: Apache-2.0
// This is ZB-2p: the automatic scheduler of the paper (zero_bubble_heuristic.h) in twice the memory
// of 1f1b.
//
// The bubble at F = I = W is P-1, as in zb-h2, with none within a rank's own span. At most 2P
// microbatches are in flight, or the given limit.
#include "common/schedule/generators/generators.h"
#include "common/schedule/generators/zero_bubble_heuristic.h"

namespace takt::schedule {
namespace {

constexpr Family kFamily{
    .name = "zb-2p",
    .summary = "searched for given costs, in twice the memory of 1f1b",
    .reference = "Qi et al. 2023, arXiv:2401.10241",
    .bubble = "searched; P-1 at F = I = W = 1",
    .peak = "2P",
    .idea = "zb-1p with twice the memory.",
    .sizes = "any P and M, V = 1; costs matter",
    .care =
        "With a barrier at the end of the step it gains nothing over zb-1p at equal costs. If a "
        "runtime frees part of what is held after I, the paper's memory model keeps up to M "
        "microbatches between F and W: count chunks from F to W.",
    .splits_backward = true,
    .uses_costs = true,
    .uses_memory = true};

absl::StatusOr<Schedule> Generate(const GenerateOptions& options) {
  return BuildZeroBubbleHeuristic(kFamily, options, options.memory.value_or(2 * options.num_ranks));
}

}  // namespace

Generator Zb2p() { return {kFamily, &Generate}; }

}  // namespace takt::schedule
