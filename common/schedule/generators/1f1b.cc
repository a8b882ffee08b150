// SPDX-License-Identifier: Apache-2.0
// Bubble (P-1) * (F + B); min(P-r, M) microbatches in flight on rank r.
#include "common/schedule/generators/generators.h"
#include "common/schedule/generators/loop.h"

namespace takt::schedule {
namespace {

constexpr Family kFamily{.name = "1f1b",
                         .summary = "one forward, one backward in turn, flushed every step",
                         .reference = "PipeDream-flush: Narayanan et al. 2019, 2021",
                         .bubble = "(P-1)(F+B)",
                         .peak = "min(P-r, M)"};

absl::StatusOr<Schedule> Generate(const GenerateOptions& options) {
  return BuildLoop(kFamily.name,
                   {.num_ranks = options.num_ranks,
                    .num_microbatches = options.num_microbatches,
                    .group = options.num_microbatches,
                    .warmup = [p = options.num_ranks](int rank) { return p - 1 - rank; }});
}

}  // namespace

Generator OneForwardOneBackward() { return {kFamily, &Generate}; }

}  // namespace takt::schedule
