// SPDX-License-Identifier: Apache-2.0
// This is Chimera, sec. 3.1 of the paper: two copies of the weights, half of the microbatches from
// either end, in units of P microbatches one after the other ("direct concatenation"). The released
// generator begins a unit at every finished microbatch and then loses actions; ours follows the
// paper's picture. Ours also numbers the microbatches by direction: those that go down come first.
//
// The makespan is (4P-2)M/P + P-2 at F = 1, B = 2, with P/2 + 1 + min(r, P-1-r) chunks in flight.
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/schedule/generators/generators.h"
#include "common/schedule/generators/two_ways.h"

namespace takt::schedule {
namespace {

constexpr Family kFamily{
    .name = "chimera",
    .summary = "from both ends in units of P microbatches, backwards whole",
    .reference = "Li and Hoefler 2021, arXiv:2107.06925",
    .bubble = "(P-2)(M/P+1) at F = 1, B = 2",
    .peak = "P/2 + 1 + min(r, P-1-r)",
    .idea =
        "Two copies of the weights and whole backwards: units of P microbatches, half from each "
        "end, fit into each other like two combs.",
    .sizes = "P even, P divides M; stages as many as ranks, two of them on each",
    .care =
        "Each rank holds twice the weights. The gradients of both copies are summed every step: "
        "the result equals that of two data-parallel copies, bit for bit. The generator published "
        "with the paper loses actions at M = 4P, P >= 8, and at P = 2; this one starts units at "
        "fixed times.",
    .placement = Placement::kBidirectional};

// Places actions by ticks, where F and B take one tick each. Units begin every 2P ticks, and no two
// actions of a rank share a tick.
Row BuildRow(int ranks, int rank, int microbatches) {
  std::vector<std::optional<Action>> by_tick(2 * microbatches + ranks);
  for (const bool down : {true, false}) {
    const int stage = down ? rank : ranks - 1 - rank;
    for (int i = 0; i < microbatches / 2; ++i) {
      const int in_unit = i % (ranks / 2);
      const int begin = 2 * ranks * (i / (ranks / 2)) + 2 * in_unit;
      const MicrobatchId microbatch(down ? i : microbatches / 2 + i);
      by_tick[begin + stage] = {StageId(stage), ActionKind::kForward, microbatch};
      by_tick[begin + 2 * ranks - 1 - stage] = {StageId(stage), ActionKind::kBackward, microbatch};
    }
  }
  Row row;
  row.reserve(2 * static_cast<std::size_t>(microbatches));
  for (const std::optional<Action>& action : by_tick) {
    if (action.has_value()) row.push_back(*action);
  }
  return row;
}

absl::StatusOr<Schedule> Generate(const GenerateOptions& options) {
  const int ranks = options.num_ranks;
  const int microbatches = options.num_microbatches;
  RETURN_IF_ERROR(CheckEven(kFamily.name, "ranks", ranks));
  if (microbatches % ranks != 0) {
    return InvalidField(
        {.field = "microbatches",
         .value = absl::StrCat(microbatches),
         .rule = absl::StrCat("chimera needs a multiple of ranks (", ranks, ")"),
         .fix = absl::StrCat("use ", (std::int64_t{microbatches} / ranks + 1) * ranks,
                             ", or dualpipe, or a schedule that goes one way")});
  }
  std::vector<Row> rows;
  for (int rank = 0; rank < ranks; ++rank) rows.push_back(BuildRow(ranks, rank, microbatches));
  return MakeSchedule(kFamily, options, std::move(rows));
}

}  // namespace

Generator Chimera() { return {kFamily, &Generate}; }

}  // namespace takt::schedule
