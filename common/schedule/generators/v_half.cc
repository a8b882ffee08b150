// SPDX-License-Identifier: Apache-2.0
// This is V-Half, sec. 4 of the paper: the building block whose chunks live half as long as in
// ZB-V.
//
// The bubble is max(P-1, 3P-7), or 3P-4 for odd P, at F = I = W = 1 and M >= 2P. A microbatch adds
// nothing to it as long as W + 2I >= 2F and W + 2F >= 2I. At most 2 * floor((P+2)/2) chunks are in
// flight.
#include "common/schedule/generators/generators.h"
#include "common/schedule/generators/v_block.h"

namespace takt::schedule {
namespace {

constexpr Family kFamily{
    .name = "v-half",
    .summary = "zb-v in half of 1f1b's memory",
    .reference = "Qi et al. 2024, arXiv:2405.15362",
    .bubble = "3P-7 (P odd: 3P-4), at least P-1, at F = I = W = 1",
    .peak = "2 floor((P+2)/2)",
    .idea =
        "A repeating block on the V whose stages release their microbatches after half the time of "
        "zb-v: half the memory, and a steady phase without gaps as long as W + 2I >= 2F and W + 2F "
        ">= 2I.",
    .sizes = "V = 2, any P and M",
    .care =
        "Its bubble is about half of 1f1b's by the span of a rank; with a barrier it is larger.",
    .placement = Placement::kV,
    .splits_backward = true,
    .num_chunks = 2};

absl::StatusOr<Schedule> Generate(const GenerateOptions& options) {
  const int p = options.num_ranks;
  const int k = p % 2 == 0 ? 3 : 0;  // keeps the slots distinct mod 6
  return BuildVBlock(kFamily, options,
                     {.fd = [](int r) { return 2 * r; },
                      .fu = [p](int r) { return 3 * p - 2 - r; },
                      .id = [p, k](int r) { return 3 * p - 1 + k + 2 * r; },
                      .iu = [p, k](int r) { return 6 * p - 2 + k - r; }});
}

}  // namespace

Generator VHalf() { return {kFamily, &Generate}; }

}  // namespace takt::schedule
