// SPDX-License-Identifier: Apache-2.0
// This is ZB-H2, sec. 2.4 of the paper, which draws it and states no rule. Our rule has the figures
// of the paper: twice the warmup of 1f1b fills what ZB-H1 leaves idle.
//
// The bubble is (P-1) * max(F, F + I - 2 * W), with 2P-1 microbatches in flight, both for M >= 2P.
// If F = I = W, a rank has no bubble within its own span.
#include "common/schedule/generators/generators.h"
#include "common/schedule/generators/loop.h"

namespace takt::schedule {
namespace {

constexpr Family kFamily{
    .name = "zb-h2",
    .summary = "zb-h1 with twice the warmup and twice the memory",
    .reference = "Qi et al. 2023, arXiv:2401.10241",
    .bubble = "(P-1) max(F, F+I-2W)",
    .peak = "2P - 1",
    .idea =
        "Like zb-h1 with twice the warm-up: the ramp up is filled with forwards too, and the whole "
        "picture becomes a parallelogram. Between its own first and last action a rank is never "
        "idle if F, I and W are equal.",
    .sizes = "any P and M, V = 1; M >= 2P for the formula",
    .care =
        "The bubble is zero only by the span of a rank. With a barrier before the optimizer, the "
        "makespan counts, and P - 1 units of idle are left. At equal costs this is no better than "
        "zb-h1.",
    .splits_backward = true};

absl::StatusOr<Schedule> Generate(const GenerateOptions& options) {
  return BuildLoop(kFamily, options,
                   {.warmup = [p = options.num_ranks](int rank) { return 2 * (p - 1 - rank); },
                    .lag = [](int rank) { return 2 * rank; }});
}

}  // namespace

Generator ZbH2() { return {kFamily, &Generate}; }

}  // namespace takt::schedule
