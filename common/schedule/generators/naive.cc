// SPDX-License-Identifier: Apache-2.0
// Makespan M * (P * (F + B) + 2 * (P-1) * latency); one microbatch in flight.
#include "common/schedule/generators/generators.h"
#include "common/schedule/generators/loop.h"

namespace takt::schedule {
namespace {

constexpr Family kFamily{.name = "naive",
                         .summary = "one microbatch at a time through all stages",
                         .reference = "layer parallelism",
                         .bubble = "M(P-1)(F+B)",
                         .peak = "1"};

absl::StatusOr<Schedule> Generate(const GenerateOptions& options) {
  return BuildLoop(kFamily.name, {.num_ranks = options.num_ranks,
                                  .num_microbatches = options.num_microbatches,
                                  .group = options.num_microbatches,
                                  .warmup = [](int) { return 0; }});
}

}  // namespace

Generator Naive() { return {kFamily, &Generate}; }

}  // namespace takt::schedule
