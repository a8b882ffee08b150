// SPDX-License-Identifier: Apache-2.0
// ZB-V, the hand-made schedule of sec. 4 (there V-ZB; PyTorch's ScheduleZBVZero
//
// Bubble). With fewer than 2P-1 microbatches the order for 2P-1 is made and those that are not
// there are left out. Bubble (P-1) * max(I, 2 * (I - W)) of one chunk for W <= F <= I and M >= 2P
// (none within a rank's own span if F = I = W); 2P chunks in flight on every rank, the memory of
// 1f1b.
#include <algorithm>

#include "common/base/status.h"
#include "common/schedule/generators/generators.h"
#include "common/schedule/generators/padding.h"
#include "common/schedule/generators/v_row.h"

namespace takt::schedule {
namespace {

constexpr Family kFamily{.name = "zb-v",
                         .summary = "down and back up the ranks, in 1f1b's memory on all of them",
                         .reference = "Qi et al. 2024, arXiv:2405.15362",
                         .bubble = "(P-1) max(I, 2(I-W)) if W <= F <= I",
                         .peak = "2P",
                         .placement = Placement::kV,
                         .splits_backward = true,
                         .num_chunks = 2};

Row BuildRow(int ranks, int rank, int microbatches, int padded) {
  using enum VPass;
  VRow row(ranks, rank, microbatches);
  row.Repeat(2 * (ranks - rank) - 1, kFd);
  row.Repeat(rank, kFu, kFd);
  row.Repeat(ranks - rank, kFu, kId, kWd);
  while (row.Count(kFu) < padded) {
    if (row.Count(kFd) < padded) row.Add(kFd);
    row.Repeat(1, kIu, kWu, kFu, kId, kWd);
  }
  row.Repeat(rank, kIu, kId);
  row.Repeat(ranks - rank, kIu, kWu);
  row.Repeat(padded - row.Count(kWd), kWd);
  row.Repeat(padded - row.Count(kWu), kWu);
  return row.Take();
}

absl::StatusOr<Schedule> Generate(const GenerateOptions& options) {
  const int ranks = options.num_ranks;
  RETURN_IF_ERROR(CheckPadded(ranks, 2 * std::int64_t{ranks}));
  const int padded = std::max(options.num_microbatches, 2 * ranks - 1);
  Schedule schedule{.name = std::string(kFamily.name),
                    .num_stages = 2 * ranks,
                    .num_microbatches = options.num_microbatches,
                    .placement = Placement::kV};
  for (int rank = 0; rank < ranks; ++rank)
    schedule.ranks.push_back(BuildRow(ranks, rank, options.num_microbatches, padded));
  return schedule;
}

}  // namespace

Generator ZbV() { return {kFamily, &Generate}; }

}  // namespace takt::schedule
