// SPDX-License-Identifier: Apache-2.0
// This is GIS of PipeOffload, sec. 4: interleaved in groups of N, where a rank sends the input
// gradient on before it runs the weight gradient. The way back costs I instead of B for each stage,
// so half of the extra warmup of interleaved-1f1b is enough: less bubble and less memory. N is at
// least P/2. Smaller groups would leave holes and save nothing; the paper uses them only together
// with recompute.
//
// The bubble is (P-1) * (F + I) of one chunk if N = P, and larger for smaller N, with (V-1) * N + P
// - r chunks in flight.
#include "common/base/status.h"
#include "common/schedule/generators/generators.h"
#include "common/schedule/generators/group.h"
#include "common/schedule/generators/loop.h"

namespace takt::schedule {
namespace {

constexpr Family kFamily{
    .name = "gis",
    .summary = "interleaved in groups, input gradients sent on first",
    .reference = "PipeOffload: Wan et al. 2025, arXiv:2503.01328",
    .bubble = "(P-1)(F+I) at N = P",
    .peak = "(V-1)N + P - r",
    .idea =
        "Groups of N microbatches, and of every backward the input gradient first and sent off at "
        "once. The way back costs I per stage instead of B, so fewer forwards are needed to cover "
        "it: less bubble and less memory than interleaved-1f1b.",
    .sizes = "V >= 2; N from P/2 to P, whose last group is full or has at least P/2",
    .care = "Groups smaller than P save memory and cost idle time: P/2 is the useful minimum.",
    .splits_backward = true,
    .num_chunks = 2,
    .uses_chunks = true,
    .uses_group = true};

absl::StatusOr<Schedule> Generate(const GenerateOptions& options) {
  const int ranks = options.num_ranks;
  const int chunks = *options.num_chunks;
  ASSIGN_OR_RETURN(const int group, ChooseGroup(kFamily.name, options, (ranks + 1) / 2));
  return BuildLoop(kFamily, options,
                   {.group = group,
                    .warmup = [=](int rank) { return (chunks - 1) * group + ranks - 1 - rank; },
                    .lag = [](int) { return 0; }});
}

}  // namespace

Generator Gis() { return {kFamily, &Generate}; }

}  // namespace takt::schedule
