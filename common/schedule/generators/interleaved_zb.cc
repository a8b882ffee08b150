// SPDX-License-Identifier: Apache-2.0
// Interleaved 1F1B with split backward: PyTorch's ScheduleInterleavedZero
//
// Bubble ("ZB1P" there). Input gradients come back sooner than full backwards, so half of
// interleaved-1f1b's extra warmup is enough. Bubble (P-1) * max(F, I, F + I - W) of one chunk,
// (V-1) * N + P in flight, both for M >= P. V = 1 is zb-h1.
#include "common/base/status.h"
#include "common/schedule/generators/generators.h"
#include "common/schedule/generators/group.h"
#include "common/schedule/generators/loop.h"

namespace takt::schedule {
namespace {

constexpr Family kFamily{.name = "interleaved-zb",
                         .summary = "interleaved-1f1b whose weight gradients fill the drain",
                         .reference = "PyTorch pipelining; Qi et al. 2023, arXiv:2401.10241",
                         .bubble = "(P-1) max(F, I, F+I-W)",
                         .peak = "(V-1)N + P",
                         .splits_backward = true,
                         .num_chunks = 2,
                         .uses_chunks = true,
                         .uses_group = true};

absl::StatusOr<Schedule> Generate(const GenerateOptions& options) {
  const int ranks = options.num_ranks;
  const int chunks = *options.num_chunks;
  ASSIGN_OR_RETURN(const int group, ChooseGroup(kFamily.name, options, ranks));
  return BuildLoop(kFamily.name,
                   {.num_ranks = ranks,
                    .num_microbatches = options.num_microbatches,
                    .num_chunks = chunks,
                    .group = group,
                    .warmup = [=](int rank) { return (chunks - 1) * group + ranks - 1 - rank; },
                    .lag = [](int rank) { return rank; }});
}

}  // namespace

Generator InterleavedZb() { return {kFamily, &Generate}; }

}  // namespace takt::schedule
