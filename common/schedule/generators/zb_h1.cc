// SPDX-License-Identifier: Apache-2.0
// ZB-H1, sec. 2.3 of the paper: 1f1b's warmup, weight gradients put off by r so that they fill the
// drain. (The released "quick start" leaves rank 0 unsplit: the same bubble, but only at equal
// costs.)
//
// Bubble (P-1) * max(F, I, F + I - W), P in flight, both for M >= P.
#include "common/schedule/generators/generators.h"
#include "common/schedule/generators/loop.h"

namespace takt::schedule {
namespace {

constexpr Family kFamily{.name = "zb-h1",
                         .summary = "1f1b whose weight gradients fill the drain, in its memory",
                         .reference = "Qi et al. 2023, arXiv:2401.10241",
                         .bubble = "(P-1) max(F, I, F+I-W)",
                         .peak = "P",
                         .splits_backward = true};

absl::StatusOr<Schedule> Generate(const GenerateOptions& options) {
  return BuildLoop(kFamily.name,
                   {.num_ranks = options.num_ranks,
                    .num_microbatches = options.num_microbatches,
                    .group = options.num_microbatches,
                    .warmup = [p = options.num_ranks](int rank) { return p - 1 - rank; },
                    .lag = [](int rank) { return rank; }});
}

}  // namespace

Generator ZbH1() { return {kFamily, &Generate}; }

}  // namespace takt::schedule
