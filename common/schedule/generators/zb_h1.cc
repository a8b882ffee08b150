// SPDX-License-Identifier: Apache-2.0
// This is ZB-H1, sec. 2.3 of the paper: the warmup of 1f1b, with weight gradients put off by r so
// that they fill the drain. The released "quick start" leaves rank 0 unsplit, which gives the same
// bubble only at equal costs.
//
// The bubble is (P-1) * max(F, I, F + I - W), with P microbatches in flight, both for M >= P.
#include "common/schedule/generators/generators.h"
#include "common/schedule/generators/loop.h"

namespace takt::schedule {
namespace {

constexpr Family kFamily{
    .name = "zb-h1",
    .summary = "1f1b whose weight gradients fill the drain, in its memory",
    .reference = "Qi et al. 2023, arXiv:2401.10241",
    .bubble = "(P-1) max(F, I, F+I-W)",
    .peak = "P",
    .idea =
        "Backward is cut in two: I, which the neighbour waits for, and W, "
        "which no rank waits for. Each rank keeps 1f1b's order and its memory, "
        "and runs postponed W while the pipeline drains.",
    .sizes = "any P and M, V = 1; M >= P for the formula",
    .care =
        "Published figures use the span of one rank, not the makespan, and "
        "the quick start of the released code leaves some backwards whole: "
        "its idle is the same at equal costs and more at others.",
    .splits_backward = true};

absl::StatusOr<Schedule> Generate(const GenerateOptions& options) {
  return BuildLoop(kFamily, options,
                   {.warmup = [p = options.num_ranks](int rank) { return p - 1 - rank; },
                    .lag = [](int rank) { return rank; }});
}

}  // namespace

Generator ZbH1() { return {kFamily, &Generate}; }

}  // namespace takt::schedule
