// SPDX-License-Identifier: Apache-2.0
// This is interleaved 1F1B with a split backward: PyTorch's ScheduleInterleavedZeroBubble ("ZB1P"
// there). Input gradients come back sooner than whole backwards, so half of the extra warmup of
// interleaved-1f1b is enough.
//
// The bubble is (P-1) * max(F, I, F + I - W) of one chunk, with (V-1) * N + P chunks in flight,
// both for M >= P. With V = 1 this is zb-h1.
#include "common/base/status.h"
#include "common/schedule/generators/generators.h"
#include "common/schedule/generators/group.h"
#include "common/schedule/generators/loop.h"

namespace takt::schedule {
namespace {

constexpr Family kFamily{
    .name = "interleaved-zb",
    .summary = "interleaved-1f1b whose weight gradients fill the drain",
    .reference = "PyTorch pipelining; Qi et al. 2023, arXiv:2401.10241",
    .bubble = "(P-1) max(F, I, F+I-W)",
    .peak = "(V-1)N + P",
    .idea =
        "interleaved-1f1b with the backward cut in two: the gradient returns after I instead of B, "
        "which shortens the warm-up, and W fills the drain.",
    .sizes = "as interleaved-1f1b",
    .care =
        "Messages grow with V while chunks shrink: where a message takes 10 % of a rank's F, V = 4 "
        "is slower than V = 2.",
    .splits_backward = true,
    .num_chunks = 2,
    .uses_chunks = true,
    .uses_group = true};

absl::StatusOr<Schedule> Generate(const GenerateOptions& options) {
  const int ranks = options.num_ranks;
  const int chunks = *options.num_chunks;
  ASSIGN_OR_RETURN(const int group, ChooseGroup(kFamily.name, options, ranks));
  return BuildLoop(kFamily, options,
                   {.group = group,
                    .warmup = [=](int rank) { return (chunks - 1) * group + ranks - 1 - rank; },
                    .lag = [](int rank) { return rank; }});
}

}  // namespace

Generator InterleavedZb() { return {kFamily, &Generate}; }

}  // namespace takt::schedule
