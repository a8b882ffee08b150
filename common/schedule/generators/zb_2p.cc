// SPDX-License-Identifier: Apache-2.0
// ZB-2p: the automatic scheduler of the paper (automatic.h) in twice the memory of 1f1b.
//
// Bubble at F = I = W as zb-h2, P-1, none within a rank's own span; 2P in flight, or the limit
// given.
#include "common/schedule/generators/automatic.h"
#include "common/schedule/generators/generators.h"

namespace takt::schedule {
namespace {

constexpr Family kFamily{.name = "zb-2p",
                         .summary = "searched for given costs, in twice the memory of 1f1b",
                         .reference = "Qi et al. 2023, arXiv:2401.10241",
                         .bubble = "searched; P-1 at F = I = W = 1",
                         .peak = "2P",
                         .splits_backward = true,
                         .uses_costs = true,
                         .uses_memory = true};

absl::StatusOr<Schedule> Generate(const GenerateOptions& options) {
  return BuildAutomatic(kFamily.name, options, options.memory.value_or(2 * options.num_ranks));
}

}  // namespace

Generator Zb2p() { return {kFamily, &Generate}; }

}  // namespace takt::schedule
