// SPDX-License-Identifier: Apache-2.0
// The bubble of the steady state is 0. Every rank holds two versions of the weights, and gradients
// are one update old: w(t+1) = w(t) - step(gradient at w(t-1)).
#include "common/schedule/generators/generators.h"
#include "common/schedule/generators/without_flush.h"

namespace takt::schedule {
namespace {

constexpr Family kFamily{
    .name = "pipedream-2bw",
    .summary = "1f1b without a flush, one update a step, two versions of weights",
    .reference = "Narayanan et al. 2021, arXiv:2006.09503",
    .bubble = "0",
    .peak = "P-r",
    .idea =
        "1f1b that never drains, one update for every M microbatches, and two versions of the "
        "weights on every rank: w(t+1) = w(t) - step(gradient at w(t-1)).",
    .sizes = "M >= P, V = 1",
    .care =
        "Its result is not the synchronous one: every gradient is exactly one update old. Losses "
        "are not comparable with those of the other families. It cannot clip gradients. A "
        "validation or a checkpoint empties the pipeline.",
    .updates = Updates::kDelayed};

absl::StatusOr<Schedule> Generate(const GenerateOptions& options) {
  return WithoutFlush(kFamily, options);
}

}  // namespace

Generator PipeDream2Bw() { return {kFamily, &Generate}; }

}  // namespace takt::schedule
