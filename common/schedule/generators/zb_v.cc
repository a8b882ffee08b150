// SPDX-License-Identifier: Apache-2.0
// This is ZB-V, the hand-made schedule of sec. 4 of the paper (called V-ZB there, and
// ScheduleZBVZeroBubble in PyTorch). For fewer than 2P-1 microbatches the order for 2P-1 is made,
// and the microbatches that do not exist are left out.
//
// The bubble is (P-1) * max(I, 2 * (I - W)) of one chunk for W <= F <= I and M >= 2P; if F = I = W,
// a rank has none within its own span. Every rank has 2P chunks in flight, the memory of 1f1b.
#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "common/schedule/generators/generators.h"
#include "common/schedule/generators/padding.h"
#include "common/schedule/generators/v_row.h"

namespace takt::schedule {
namespace {

constexpr Family kFamily{
    .name = "zb-v",
    .summary = "down and back up the ranks, in 1f1b's memory on all of them",
    .reference = "Qi et al. 2024, arXiv:2405.15362",
    .bubble = "(P-1) max(I, 2(I-W)) if W <= F <= I",
    .peak = "2P",
    .idea =
        "The stages go down the ranks and come back up, so that a rank holds an early and a late "
        "one. What the early one holds long the late one holds short: all ranks need the same "
        "memory, that of 1f1b's first rank, and the turn at the bottom needs no message.",
    .sizes = "V = 2, any P and M; M >= 2P for the formula",
    .care =
        "The first and the last stage are both on rank 0: input, loss and labels are there, and "
        "tied embeddings need no exchange. With M = P it idles for 2(P-1), not P-1.",
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
  std::vector<Row> rows;
  for (int rank = 0; rank < ranks; ++rank)
    rows.push_back(BuildRow(ranks, rank, options.num_microbatches, padded));
  return MakeSchedule(kFamily, options, std::move(rows));
}

}  // namespace

Generator ZbV() { return {kFamily, &Generate}; }

}  // namespace takt::schedule
