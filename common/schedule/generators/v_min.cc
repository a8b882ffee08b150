// SPDX-License-Identifier: Apache-2.0
// This is V-Min, sec. 4 of the paper: the building block whose chunks live as short as they can. F,
// I and W should be about equal: where they differ, every microbatch adds idle time.
//
// The bubble is 4P-5 (5 at P = 3) at F = I = W = 1 and M >= 2P. At most 2 * floor((P+4)/3) chunks
// are in flight.
#include "common/schedule/generators/generators.h"
#include "common/schedule/generators/v_block.h"

namespace takt::schedule {
namespace {

constexpr Family kFamily{
    .name = "v-min",
    .summary = "zb-v in a third of 1f1b's memory, for equal F, I and W",
    .reference = "Qi et al. 2024, arXiv:2405.15362",
    .bubble = "4P-5 (P = 3: 5) at F = I = W = 1",
    .peak = "2 floor((P+4)/3)",
    .idea =
        "The block on the V that releases a microbatch as early as dependencies allow: a third of "
        "1f1b's memory.",
    .sizes = "V = 2, any P and M",
    .care =
        "It needs F = I = W. Otherwise every microbatch waits at every turn: at P = 8, M = 32 and "
        "costs 1, 1.1, 0.7 with messages of 0.1 the bubble is 30 % instead of 12 %. This is worse "
        "than 1f1b, and measurements by others agree.",
    .placement = Placement::kV,
    .splits_backward = true,
    .num_chunks = 2};

absl::StatusOr<Schedule> Generate(const GenerateOptions& options) {
  const int p = options.num_ranks;
  const int k = p % 3 == 0 ? 2 : 0;  // keeps the slots distinct mod 6
  return BuildVBlock(kFamily, options,
                     {.fd = [](int r) { return r; },
                      .fu = [p](int r) { return 2 * p - 1 - r; },
                      .id = [p, k](int r) { return 2 * p + k + r; },
                      .iu = [p, k](int r) { return 4 * p + k - 1 - r; }});
}

}  // namespace

Generator VMin() { return {kFamily, &Generate}; }

}  // namespace takt::schedule
