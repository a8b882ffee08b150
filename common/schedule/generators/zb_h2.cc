// SPDX-License-Identifier: Apache-2.0
// ZB-H2, sec. 2.4 of the paper, which draws it and gives no rule: ours has its figures. Twice the
// warmup of 1f1b fills what ZB-H1 still leaves.
//
// Bubble (P-1) * max(F, F + I - 2 * W), none within a rank's own span if F = I = W; 2P-1 in
// flight; both for M >= 2P.
#include "common/schedule/generators/generators.h"
#include "common/schedule/generators/loop.h"

namespace takt::schedule {
namespace {

constexpr Family kFamily{.name = "zb-h2",
                         .summary = "zb-h1 with twice the warmup and twice the memory",
                         .reference = "Qi et al. 2023, arXiv:2401.10241",
                         .bubble = "(P-1) max(F, F+I-2W)",
                         .peak = "2P - 1",
                         .splits_backward = true};

absl::StatusOr<Schedule> Generate(const GenerateOptions& options) {
  return BuildLoop(kFamily.name,
                   {.num_ranks = options.num_ranks,
                    .num_microbatches = options.num_microbatches,
                    .group = options.num_microbatches,
                    .warmup = [p = options.num_ranks](int rank) { return 2 * (p - 1 - rank); },
                    .lag = [](int rank) { return 2 * rank; }});
}

}  // namespace

Generator ZbH2() { return {kFamily, &Generate}; }

}  // namespace takt::schedule
