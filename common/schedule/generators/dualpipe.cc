// SPDX-License-Identifier: Apache-2.0
// This is DualPipe, sec. 3.2.1 of the DeepSeek-V3 report: two copies of the weights, half of the
// microbatches from either end, and F of one direction overlapped with B of the other. A pair that
// runs as one instruction pays only if O < F + B.
//
// The bubble is (P/2-1) * (O + B - 3W) at F = I = W, with P+1 chunks (of P stages) in flight on
// every rank.
#include <array>
#include <utility>

#include "common/base/status.h"
#include "common/schedule/generators/dualpipe_phases.h"
#include "common/schedule/generators/generators.h"
#include "common/schedule/generators/two_ways.h"

namespace takt::schedule {
namespace {

constexpr Family kFamily{
    .name = "dualpipe",
    .summary = "from both ends, forwards overlapped with backwards",
    .reference = "DeepSeek-V3 2024, arXiv:2412.19437",
    .bubble = "(P/2-1)(O+B-3W) at F = I = W",
    .peak = "P + 1",
    .idea =
        "Two copies of the weights, one running down the ranks and one up, each with half of the "
        "microbatches. In the middle a forward of one direction runs together with a backward of "
        "the other, so that the communication inside one hides behind the arithmetic of the other.",
    .sizes = "P and M even, M >= 2P; stages as many as ranks, two of them on each",
    .care =
        "Each rank holds twice the weights. The gradients of both copies are summed every step: "
        "the result equals that of two data-parallel copies, bit for bit, not that of one. As "
        "one instruction, a pair that takes as long as F + B waits for both inputs and gains "
        "nothing: at P = 8, M = 32 the bubble is 5.9 %, and 3.0 % with the halves apart. Jobs run "
        "them apart, unless ranks meet inside on CPUs. A whole pair pays where O < F + B (`--cost "
        "O=...`).",
    .placement = Placement::kBidirectional,
    .splits_backward = true,
    .overlaps = true};

absl::StatusOr<Schedule> Generate(const GenerateOptions& options) {
  const int ranks = options.num_ranks;
  const int microbatches = options.num_microbatches;
  RETURN_IF_ERROR(CheckEven(kFamily.name, "ranks", ranks));
  RETURN_IF_ERROR(CheckEven(kFamily.name, "microbatches", microbatches));
  RETURN_IF_ERROR(CheckTwiceRanks(kFamily.name, options));
  std::vector<Row> rows;
  for (int rank = 0; rank < ranks; ++rank) {
    const Direction down{.stage = rank, .first_microbatch = 0};
    const Direction up{.stage = ranks - 1 - rank, .first_microbatch = microbatches / 2};
    const bool upper_half = rank < ranks / 2;
    rows.push_back(
        BuildDualPipeRow({.half = ranks / 2,
                          .distance = upper_half ? rank : ranks - 1 - rank,
                          .num_microbatches = microbatches / 2,
                          .directions = upper_half ? std::array{down, up} : std::array{up, down}}));
  }
  return MakeSchedule(kFamily, options, std::move(rows));
}

}  // namespace

Generator DualPipe() { return {kFamily, &Generate}; }

}  // namespace takt::schedule
