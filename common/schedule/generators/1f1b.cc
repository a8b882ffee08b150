// SPDX-License-Identifier: Apache-2.0
// The bubble is (P-1) * (F + B), with min(P-r, M) microbatches in flight on rank r.
#include "common/schedule/generators/generators.h"
#include "common/schedule/generators/loop.h"

namespace takt::schedule {
namespace {

constexpr Family kFamily{
    .name = "1f1b",
    .summary = "one forward, one backward in turn, flushed every step",
    .reference = "PipeDream-flush: Narayanan et al. 2019, 2021",
    .bubble = "(P-1)(F+B)",
    .peak = "min(P-r, M)",
    .idea =
        "A rank starts its first backward as soon as it can, then alternates. The bubble is that "
        "of gpipe, but rank r holds P - r microbatches instead of M.",
    .sizes = "any P and M, V = 1; PyTorch wants M >= P",
    .care =
        "Exactly P microbatches are under way, so a message's time shows twice per microbatch in "
        "the steady phase: with I 1.1, W 0.7 and a message of 0.1 the bubble at P = 8, M = 32 "
        "grows from 18.0 % to 22.8 %. gpipe hides it."};

absl::StatusOr<Schedule> Generate(const GenerateOptions& options) {
  return BuildLoop(kFamily, options,
                   {.warmup = [p = options.num_ranks](int rank) { return p - 1 - rank; }});
}

}  // namespace

Generator OneForwardOneBackward() { return {kFamily, &Generate}; }

}  // namespace takt::schedule
