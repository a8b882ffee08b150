// SPDX-License-Identifier: Apache-2.0
// The bubble is (P-1) * (F + B + 2 * latency), with M microbatches in flight. Backwards run in the
// order of the forwards; the paper reverses them.
#include "common/schedule/generators/generators.h"
#include "common/schedule/generators/loop.h"

namespace takt::schedule {
namespace {

constexpr Family kFamily{
    .name = "gpipe",
    .summary = "all forwards, then all backwards",
    .reference = "Huang et al. 2019, arXiv:1811.06965",
    .bubble = "(P-1)(F+B)",
    .peak = "M",
    .idea =
        "All microbatches go forward, then all go back. While the first is on its way every other "
        "rank fills up behind it, so only the ramps at both ends are idle.",
    .sizes = "any P and M, V = 1",
    .care =
        "The paper lets the backwards descend, from the last microbatch to the first; here they "
        "ascend. The time is the same, and all families sum gradients in one order."};

absl::StatusOr<Schedule> Generate(const GenerateOptions& options) {
  return BuildLoop(kFamily, options, {.warmup = [m = options.num_microbatches](int) { return m; }});
}

}  // namespace

Generator Gpipe() { return {kFamily, &Generate}; }

}  // namespace takt::schedule
