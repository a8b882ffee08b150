// SPDX-License-Identifier: Apache-2.0
// Bubble (P-1) * (F + B + 2 * latency); M microbatches in flight. Backwards run in the order of
// the forwards (the paper reverses).
#include "common/schedule/generators/generators.h"
#include "common/schedule/generators/loop.h"

namespace takt::schedule {
namespace {

constexpr Family kFamily{.name = "gpipe",
                         .summary = "all forwards, then all backwards",
                         .reference = "Huang et al. 2019, arXiv:1811.06965",
                         .bubble = "(P-1)(F+B)",
                         .peak = "M"};

absl::StatusOr<Schedule> Generate(const GenerateOptions& options) {
  return BuildLoop(kFamily.name, {.num_ranks = options.num_ranks,
                                  .num_microbatches = options.num_microbatches,
                                  .group = options.num_microbatches,
                                  .warmup = [m = options.num_microbatches](int) { return m; }});
}

}  // namespace

Generator Gpipe() { return {kFamily, &Generate}; }

}  // namespace takt::schedule
