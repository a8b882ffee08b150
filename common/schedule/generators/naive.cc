// SPDX-License-Identifier: Apache-2.0
// The makespan is M * (P * (F + B) + 2 * (P-1) * latency), with one microbatch in flight.
#include "common/schedule/generators/generators.h"
#include "common/schedule/generators/loop.h"

namespace takt::schedule {
namespace {

constexpr Family kFamily{
    .name = "naive",
    .summary = "one microbatch at a time through all stages",
    .reference = "layer parallelism",
    .bubble = "M(P-1)(F+B)",
    .peak = "1",
    .idea =
        "A microbatch goes forward through all stages and back through all of them before the next "
        "one starts. One rank works at a time: this is what pipelining is measured against, and "
        "the order that every other synchronous family must match bit for bit.",
    .sizes = "any P and M, V = 1",
    .care = "Its bubble does not shrink with more microbatches: with P = 4 and M = 8 it is 3/4."};

absl::StatusOr<Schedule> Generate(const GenerateOptions& options) {
  return BuildLoop(kFamily, options, {.warmup = [](int) { return 0; }});
}

}  // namespace

Generator Naive() { return {kFamily, &Generate}; }

}  // namespace takt::schedule
