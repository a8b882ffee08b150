// SPDX-License-Identifier: Apache-2.0
#include "common/schedule/schedule.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::schedule {
namespace {

// The first action, by rank and position, that is not on the rank that `placement` says.
std::optional<std::string> Contradiction(const Schedule& schedule, Placement placement) {
  if (placement == Placement::kV && schedule.num_stages != 2 * schedule.num_ranks()) {
    return absl::StrCat(schedule.num_stages, " stages are not 2 a rank");
  }
  const bool two_ways = placement == Placement::kBidirectional;
  if (two_ways && (schedule.num_stages != schedule.num_ranks() || schedule.num_ranks() % 2 != 0)) {
    return absl::StrCat(schedule.num_stages,
                        " stages are not 1 on each of an even number of ranks");
  }
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    for (const Action& action : schedule.ranks[rank]) {
      if (IsOfVocabulary(action.kind)) continue;  // these are on every rank
      const int home = RankOfStage(placement, schedule.num_ranks(), action.stage).value();
      const int other = two_ways ? schedule.num_ranks() - 1 - home : home;
      if (rank == home || rank == other) continue;
      return absl::StrCat(action.ToString(), " is on rank ", rank, ", not ", home,
                          two_ways ? absl::StrCat(" or ", other) : "");
    }
  }
  return std::nullopt;
}

}  // namespace

bool BeginsPair(const Row& row, int position) {
  const std::size_t next = static_cast<std::size_t>(position) + 1;
  return row[position].joins_next && row[position].kind == ActionKind::kForward &&
         next < row.size() && row[next].kind == ActionKind::kBackward;
}

std::string CellText(const Row& row, int position) {
  const std::string text = row[position].ToString();
  if (!BeginsPair(row, position)) return text;
  return absl::StrCat("(", text, ";", row[position + 1].ToString(), ")");
}

int CellNumber(const Row& row, int position) {
  int number = 1;
  for (int i = 0; i < position; ++i) number += BeginsPair(row, i) ? 0 : 1;
  return number;
}

PpRank RankOfStage(Placement placement, int num_ranks, StageId stage) {
  if (placement == Placement::kV && stage.value() >= num_ranks) {
    return PpRank(2 * num_ranks - 1 - stage.value());
  }
  return PpRank(stage.value() % num_ranks);
}

std::vector<PpRank> RanksOfStage(Placement placement, int num_ranks, StageId stage) {
  std::vector<PpRank> ranks = {RankOfStage(placement, num_ranks, stage)};
  if (placement == Placement::kBidirectional) ranks.emplace_back(num_ranks - 1 - ranks[0].value());
  return ranks;
}

std::string_view PlacementName(Placement placement) {
  constexpr std::string_view kNames[] = {"unknown", "loop", "v", "bidirectional"};
  return kNames[static_cast<int>(placement)];
}

absl::StatusOr<Placement> InferPlacement(const Schedule& schedule) {
  const std::optional<std::string> not_loop = Contradiction(schedule, Placement::kLoop);
  if (!not_loop.has_value()) return Placement::kLoop;
  const std::optional<std::string> not_v = Contradiction(schedule, Placement::kV);
  if (!not_v.has_value()) return Placement::kV;
  const std::optional<std::string> not_both = Contradiction(schedule, Placement::kBidirectional);
  if (!not_both.has_value()) return Placement::kBidirectional;
  return InvalidField(
      {.field = "placement",
       .value = schedule.name,
       .rule = absl::StrCat("stages are placed as a loop (here ", *not_loop, "), as a v (here ",
                            *not_v, ") or bidirectionally (here ", *not_both, ")"),
       .fix = "put every action in the row of a rank that holds its stage"});
}

}  // namespace takt::schedule
