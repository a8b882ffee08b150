// SPDX-License-Identifier: Apache-2.0
// GIS of PipeOffload, sec. 4: interleaved in groups of N, the input gradient sent on before its
// weight gradient runs. The way back costs I instead of B a stage, so half of interleaved-1f1b's
// extra warmup is enough: less bubble and less memory. N from P/2 on; smaller groups (in the paper
// only together with recompute) would leave holes and save nothing.
//
// Bubble (P-1) * (F + I) of one chunk if N = P, more below; (V-1) * N + P - r in flight.
#include "common/base/status.h"
#include "common/schedule/generators/generators.h"
#include "common/schedule/generators/group.h"
#include "common/schedule/generators/loop.h"

namespace takt::schedule {
namespace {

constexpr Family kFamily{.name = "gis",
                         .summary = "interleaved in groups, input gradients sent on first",
                         .reference = "PipeOffload: Wan et al. 2025, arXiv:2503.01328",
                         .bubble = "(P-1)(F+I) at N = P",
                         .peak = "(V-1)N + P - r",
                         .splits_backward = true,
                         .num_chunks = 2,
                         .uses_chunks = true,
                         .uses_group = true};

absl::StatusOr<Schedule> Generate(const GenerateOptions& options) {
  const int ranks = options.num_ranks;
  const int chunks = *options.num_chunks;
  ASSIGN_OR_RETURN(const int group, ChooseGroup(kFamily.name, options, (ranks + 1) / 2));
  return BuildLoop(kFamily.name,
                   {.num_ranks = ranks,
                    .num_microbatches = options.num_microbatches,
                    .num_chunks = chunks,
                    .group = group,
                    .warmup = [=](int rank) { return (chunks - 1) * group + ranks - 1 - rank; },
                    .lag = [](int) { return 0; }});
}

}  // namespace

Generator Gis() { return {kFamily, &Generate}; }

}  // namespace takt::schedule
