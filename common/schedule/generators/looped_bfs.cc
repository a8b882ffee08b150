// SPDX-License-Identifier: Apache-2.0
// Breadth first over the chunks, sec. 4.1 of the paper. Backwards ascend in microbatches, as every
// synchronous family does here (PyTorch's descend): same time, same memory, same sums.
//
// Bubble (P-1) * (F + B) of one chunk if M >= P; V * M chunks in flight. V = 1 is gpipe.
#include "common/schedule/generators/generators.h"
#include "common/schedule/generators/loop.h"

namespace takt::schedule {
namespace {

constexpr Family kFamily{.name = "looped-bfs",
                         .summary = "gpipe over several chunks per rank, chunk by chunk",
                         .reference = "Lamy-Poirier 2022, arXiv:2211.05953",
                         .bubble = "(P-1)(F+B)",
                         .peak = "VM",
                         .num_chunks = 2,
                         .uses_chunks = true};

absl::StatusOr<Schedule> Generate(const GenerateOptions& options) {
  const int passes = *options.num_chunks * options.num_microbatches;
  return BuildLoop(kFamily.name, {.num_ranks = options.num_ranks,
                                  .num_microbatches = options.num_microbatches,
                                  .num_chunks = *options.num_chunks,
                                  .group = options.num_microbatches,
                                  .warmup = [passes](int) { return passes; }});
}

}  // namespace

Generator LoopedBfs() { return {kFamily, &Generate}; }

}  // namespace takt::schedule
