// SPDX-License-Identifier: Apache-2.0
// DualPipe, sec. 3.2.1 of the DeepSeek-V3 report: two copies of the weights, half of the
// microbatches from either end, F of one direction overlapped with B of the other. Pays only if O <
// F + B.
//
// Bubble (P/2-1) * (O + B - 3W) at F = I = W; P+1 chunks (of P stages) in flight on every rank.
#include <array>

#include "common/base/status.h"
#include "common/schedule/generators/dualpipe_phases.h"
#include "common/schedule/generators/generators.h"
#include "common/schedule/generators/two_ways.h"

namespace takt::schedule {
namespace {

constexpr Family kFamily{.name = "dualpipe",
                         .summary = "from both ends, forwards overlapped with backwards",
                         .reference = "DeepSeek-V3 2024, arXiv:2412.19437",
                         .bubble = "(P/2-1)(O+B-3W) at F = I = W",
                         .peak = "P + 1",
                         .placement = Placement::kBidirectional,
                         .splits_backward = true,
                         .overlaps = true};

absl::StatusOr<Schedule> Generate(const GenerateOptions& options) {
  const int ranks = options.num_ranks;
  const int microbatches = options.num_microbatches;
  RETURN_IF_ERROR(CheckEven(kFamily.name, "ranks", ranks));
  RETURN_IF_ERROR(CheckEven(kFamily.name, "microbatches", microbatches));
  RETURN_IF_ERROR(CheckTwiceRanks(kFamily.name, options));
  Schedule schedule{.name = std::string(kFamily.name),
                    .num_stages = ranks,
                    .num_microbatches = microbatches,
                    .placement = Placement::kBidirectional};
  for (int rank = 0; rank < ranks; ++rank) {
    const Direction down{.stage = rank, .first_microbatch = 0};
    const Direction up{.stage = ranks - 1 - rank, .first_microbatch = microbatches / 2};
    const bool upper_half = rank < ranks / 2;
    schedule.ranks.push_back(
        BuildDualPipeRow({.half = ranks / 2,
                          .distance = upper_half ? rank : ranks - 1 - rank,
                          .num_microbatches = microbatches / 2,
                          .directions = upper_half ? std::array{down, up} : std::array{up, down}}));
  }
  return schedule;
}

}  // namespace

Generator DualPipe() { return {kFamily, &Generate}; }

}  // namespace takt::schedule
