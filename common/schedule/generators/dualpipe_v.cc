// SPDX-License-Identifier: Apache-2.0
// This is DualPipe-V (deepseek-ai/DualPipe; "cut-in-half"): the phases of DualPipe on the V
// placement, so that one copy of the weights serves both directions.
//
// The bubble is (P-1) * (O + B - 3W) at F = I = W, with 2P+1 chunks (of 2P stages) in flight on
// every rank.
#include <utility>

#include "common/base/status.h"
#include "common/schedule/generators/dualpipe_phases.h"
#include "common/schedule/generators/generators.h"
#include "common/schedule/generators/two_ways.h"

namespace takt::schedule {
namespace {

constexpr Family kFamily{
    .name = "dualpipe-v",
    .summary = "dualpipe on a V, with one copy of the weights",
    .reference = "DeepSeek 2025, github.com/deepseek-ai/DualPipe",
    .bubble = "(P-1)(O+B-3W) at F = I = W",
    .peak = "2P + 1",
    .idea =
        "The phases of dualpipe on the V placement: both directions of a rank are its early and "
        "its late stage, so one copy of the weights is enough.",
    .sizes = "V = 2, M >= 2P",
    .care =
        "As with dualpipe, an overlapped pair has to be faster than its halves to be worth it, "
        "unless a job runs the halves apart.",
    .placement = Placement::kV,
    .splits_backward = true,
    .overlaps = true,
    .num_chunks = 2};

absl::StatusOr<Schedule> Generate(const GenerateOptions& options) {
  const int ranks = options.num_ranks;
  RETURN_IF_ERROR(CheckTwiceRanks(kFamily.name, options));
  std::vector<Row> rows;
  for (int rank = 0; rank < ranks; ++rank) {
    const Direction down{.stage = rank};
    const Direction up{.stage = 2 * ranks - 1 - rank};
    rows.push_back(BuildDualPipeRow({.half = ranks,
                                     .distance = rank,
                                     .num_microbatches = options.num_microbatches,
                                     .directions = {down, up}}));
  }
  return MakeSchedule(kFamily, options, std::move(rows));
}

}  // namespace

Generator DualPipeV() { return {kFamily, &Generate}; }

}  // namespace takt::schedule
