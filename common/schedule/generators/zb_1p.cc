// SPDX-License-Identifier: Apache-2.0
// ZB-1p: the automatic scheduler of the paper (automatic.h) in the memory of 1f1b.
//
// Bubble at F = I = W as zb-h1, P-1; P in flight, or the limit that is given.
#include "common/schedule/generators/automatic.h"
#include "common/schedule/generators/generators.h"

namespace takt::schedule {
namespace {

constexpr Family kFamily{.name = "zb-1p",
                         .summary = "searched for given costs, in the memory of 1f1b",
                         .reference = "Qi et al. 2023, arXiv:2401.10241",
                         .bubble = "searched; P-1 at F = I = W = 1",
                         .peak = "P",
                         .splits_backward = true,
                         .uses_costs = true,
                         .uses_memory = true};

absl::StatusOr<Schedule> Generate(const GenerateOptions& options) {
  return BuildAutomatic(kFamily.name, options, options.memory.value_or(options.num_ranks));
}

}  // namespace

Generator Zb1p() { return {kFamily, &Generate}; }

}  // namespace takt::schedule
