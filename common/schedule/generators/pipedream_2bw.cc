// SPDX-License-Identifier: Apache-2.0
// Steady bubble 0; two versions of the weights on every rank, gradients one update old:
// w(t+1) = w(t) - step(gradient at w(t-1)).
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
    .updates = Updates::kDelayed};

absl::StatusOr<Schedule> Generate(const GenerateOptions& options) {
  return WithoutFlush(kFamily, options);
}

}  // namespace

Generator PipeDream2Bw() { return {kFamily, &Generate}; }

}  // namespace takt::schedule
