// SPDX-License-Identifier: Apache-2.0
// This runs breadth first over the chunks, sec. 4.1 of the paper. Backwards ascend in microbatches,
// as in every synchronous family here. PyTorch's descend: they take the same time and the same
// memory.
//
// The bubble is (P-1) * (F + B) of one chunk if M >= P, with V * M chunks in flight. With V = 1
// this is gpipe.
#include "common/schedule/generators/generators.h"
#include "common/schedule/generators/loop.h"

namespace takt::schedule {
namespace {

constexpr Family kFamily{
    .name = "looped-bfs",
    .summary = "gpipe over several chunks per rank, chunk by chunk",
    .reference = "Lamy-Poirier 2022, arXiv:2211.05953",
    .bubble = "(P-1)(F+B)",
    .peak = "VM",
    .idea =
        "Breadth first: all microbatches pass a chunk before the next chunk begins. Messages have "
        "the whole length of a chunk's pass to arrive, and everything is held until the turn.",
    .sizes = "V >= 2, M >= P for the formula",
    .care =
        "Published code runs the backwards of a chunk from the last microbatch to the first; here "
        "they ascend, so that the sums of gradients agree with the other families bit for bit.",
    .num_chunks = 2,
    .uses_chunks = true};

absl::StatusOr<Schedule> Generate(const GenerateOptions& options) {
  const int passes = *options.num_chunks * options.num_microbatches;
  return BuildLoop(kFamily, options, {.warmup = [passes](int) { return passes; }});
}

}  // namespace

Generator LoopedBfs() { return {kFamily, &Generate}; }

}  // namespace takt::schedule
