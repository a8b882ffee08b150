// SPDX-License-Identifier: Apache-2.0
#include "common/schedule/validator.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/base/counted.h"
#include "common/base/status.h"
#include "common/schedule/graph.h"
#include "common/schedule/marked_grid.h"
#include "common/schedule/waiting_cycle.h"

namespace takt::schedule {
namespace {

std::string Place(const ActionGraph& graph, ActionNumber action) {
  return Place(graph.schedule(), graph.RankOf(action), graph.PositionOf(action));
}

// Reports a broken rule of one cell: "where: ACTION rule; fix", and the grid below. `position` may
// be one past the row's end.
absl::Status Guilty(const Schedule& schedule, int rank, int position, const std::string& action,
                    const std::string& rule, const std::string& fix) {
  const std::string where = absl::StrCat(schedule.name, ": ", Place(schedule, rank, position));
  const absl::Status plain = InvalidField(
      {.field = "schedule", .value = action, .rule = rule, .fix = fix, .where = where});
  absl::Status with_grid(plain.code(), absl::StrCat(where, ": ", action, " ", rule, "; ", fix, "\n",
                                                    MarkedGrid(schedule, rank, position)));
  plain.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    with_grid.SetPayload(url, payload);
  });
  return with_grid;
}

absl::Status WrongSize(std::string_view field, std::int64_t value, std::string rule) {
  return InvalidField(
      {.field = std::string(field),
       .value = absl::StrCat(value),
       .rule = std::move(rule),
       .fix = "check that the schedule has a row for each rank and all its stages"});
}

absl::Status CheckSizes(const Schedule& schedule) {
  const int ranks = schedule.num_ranks();
  const int stages = schedule.num_stages;
  if (ranks < 1) return WrongSize("ranks", ranks, "must be at least 1");
  if (stages < 1) return WrongSize("stages", stages, "must be at least 1");
  if (schedule.num_microbatches < 1) {
    return WrongSize("microbatches", schedule.num_microbatches, "must be at least 1");
  }
  switch (schedule.placement) {
    case Placement::kLoop:
      if (stages % ranks == 0) break;
      return WrongSize(
          "stages", stages,
          absl::StrCat("must be a multiple of ranks (", ranks, ") in a loop placement"));
    case Placement::kV:
      if (stages == 2 * std::int64_t{ranks}) break;
      return WrongSize("stages", stages,
                       absl::StrCat("must be twice the ranks (", ranks, ") in a v placement"));
    case Placement::kBidirectional:
      if (stages == ranks && ranks % 2 == 0) break;
      return WrongSize("stages", stages,
                       absl::StrCat("must be the ranks (", ranks,
                                    "), an even number, in a bidirectional placement"));
  }
  return absl::OkStatus();
}

// Every rank meets all others over the vocabulary, and its rows exist once.
absl::Status CheckMaySpread(const Schedule& schedule) {
  if (!schedule.spreads_vocabulary) return absl::OkStatus();
  const auto refused = [&](std::string_view field, std::string value, std::string fix) {
    return InvalidField({.field = std::string(field),
                         .value = std::move(value),
                         .rule = "cannot spread the vocabulary over the ranks",
                         .fix = std::move(fix)});
  };
  if (schedule.updates != Updates::kFlush) {
    return refused("schedule", schedule.name, "use a schedule with a flush");
  }
  if (schedule.placement == Placement::kBidirectional) {
    return refused("placement", std::string(PlacementName(schedule.placement)),
                   "use a schedule with one copy of the weights");
  }
  return absl::OkStatus();
}

// Returns whether the stage and microbatch of an action exist. S and T have the stage after the
// last one.
bool IsInRange(const Schedule& schedule, const Action& action) {
  const int stage = action.stage.value();
  const int microbatch = action.microbatch.value();
  const bool stage_exists = IsOfVocabulary(action.kind)
                                ? schedule.spreads_vocabulary && stage == schedule.num_stages
                                : stage >= 0 && stage < schedule.num_stages;
  return stage_exists && microbatch >= 0 && microbatch < schedule.num_microbatches;
}

absl::Status CheckRange(const Schedule& schedule) {
  std::int64_t num_actions = 0;
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    const std::vector<Action>& row = schedule.ranks[rank];
    num_actions += static_cast<std::int64_t>(row.size());
    for (int i = 0; i < static_cast<int>(row.size()); ++i) {
      if (IsInRange(schedule, row[i])) continue;
      if (IsOfVocabulary(row[i].kind) && !schedule.spreads_vocabulary) {
        return Guilty(schedule, rank, i, row[i].ToString(),
                      "is of the vocabulary, which this schedule does not spread",
                      "remove the action");
      }
      return Guilty(
          schedule, rank, i, row[i].ToString(),
          absl::StrCat("is out of range: there are ", Counted(schedule.num_stages, "stage"),
                       " and ", Counted(schedule.num_microbatches, "microbatch"),
                       ", counted from 0"),
          "remove the action");
    }
  }
  if (num_actions > kMaxActions) {
    return WrongSize("actions", num_actions, absl::StrCat("must not exceed ", kMaxActions));
  }
  return absl::OkStatus();
}

int HomeOf(const Schedule& schedule, StageId stage) {
  return RankOfStage(schedule.placement, schedule.num_ranks(), stage).value();
}

absl::Status Missing(const Schedule& schedule, const Action& action, int rank, int position) {
  const bool may_split = action.kind == ActionKind::kBackward;
  return Guilty(
      schedule, rank, position, action.ToString(),
      absl::StrCat("is missing: each of the ", Counted(schedule.num_microbatches, "microbatch"),
                   " has one F and one B (or one I and one W) on each of the ",
                   Counted(schedule.num_stages, "stage")),
      absl::StrCat("add it", may_split ? " (or I and W in its place)" : ""));
}

// With fewer than two actions for each (stage, microbatch) one must be missing. Finds it in time
// linear in the actions present, however large the counts are: one stray cell of a file may claim
// millions.
absl::Status CheckEnough(const Schedule& schedule) {
  std::int64_t num_actions = 0;
  for (const auto& row : schedule.ranks) {
    num_actions += std::count_if(row.begin(), row.end(),
                                 [](const Action& action) { return !IsOfVocabulary(action.kind); });
  }
  const std::int64_t cells = std::int64_t{schedule.num_stages} * schedule.num_microbatches;
  if (2 * cells <= num_actions) return absl::OkStatus();
  absl::flat_hash_set<std::pair<std::int64_t, bool>> present;  // cell, is forward
  for (const auto& row : schedule.ranks) {
    for (const Action& action : row) {
      if (action.kind == ActionKind::kWeightGrad || IsOfVocabulary(action.kind)) continue;
      present.insert({std::int64_t{action.stage.value()} * schedule.num_microbatches +
                          action.microbatch.value(),
                      action.kind == ActionKind::kForward});
    }
  }
  std::int64_t key = 0;  // two a cell, which is more than are present, so the loop ends
  while (present.contains({key / 2, key % 2 == 0})) ++key;
  const StageId stage(static_cast<std::int32_t>(key / 2 / schedule.num_microbatches));
  const MicrobatchId microbatch(static_cast<std::int32_t>(key / 2 % schedule.num_microbatches));
  const int rank = HomeOf(schedule, stage);
  return Missing(schedule,
                 {stage, key % 2 == 0 ? ActionKind::kForward : ActionKind::kBackward, microbatch},
                 rank, static_cast<int>(schedule.ranks[rank].size()));
}

// No two actions of a kind are for one stage and microbatch, and no B is beside I or W.
absl::Status CheckNoneDoubled(const ActionGraph& graph) {
  for (ActionNumber number = 0; number < graph.num_actions(); ++number) {
    const Action& action = graph.At(number);
    ActionNumber other = graph.Occupant(number);
    if (action.kind == ActionKind::kBackward) {
      const ActionNumber weight_grad = graph.WeightGrad(action.stage, action.microbatch);
      if (weight_grad >= 0) other = weight_grad;
    }
    if (other == number) continue;
    const Action& doubled = graph.At(other);
    const std::string first = Place(graph, number);
    const bool same = doubled.kind == action.kind;
    return Guilty(graph.schedule(), graph.RankOf(other), graph.PositionOf(other),
                  doubled.ToString(),
                  same ? absl::StrCat("occurs twice: already at ", first)
                       : absl::StrCat("occurs beside ", action.ToString(), " (", first,
                                      "): B is I and W at once"),
                  same ? "remove one of them" : "keep either B, or I and W");
  }
  return absl::OkStatus();
}

// Each stage and microbatch has an F, and a B or an I and a W. The mark is at one of those that are
// there.
absl::Status CheckNoneMissing(const ActionGraph& graph) {
  const Schedule& schedule = graph.schedule();
  for (int cell = 0; cell < schedule.num_stages * schedule.num_microbatches; ++cell) {
    const StageId stage(cell / schedule.num_microbatches);
    const MicrobatchId microbatch(cell % schedule.num_microbatches);
    const ActionNumber forward = graph.Forward(stage, microbatch);
    const ActionNumber gradient = graph.Gradient(stage, microbatch);
    const ActionNumber weight_grad = graph.WeightGrad(stage, microbatch);
    ActionKind missing;
    if (forward < 0) {
      missing = ActionKind::kForward;
    } else if (gradient < 0) {
      missing = weight_grad < 0 ? ActionKind::kBackward : ActionKind::kInputGrad;
    } else if (weight_grad < 0 && graph.At(gradient).kind == ActionKind::kInputGrad) {
      missing = ActionKind::kWeightGrad;
    } else {
      continue;
    }
    const ActionNumber beside = std::max({forward, gradient, weight_grad});
    const int rank = beside >= 0 ? graph.RankOf(beside) : HomeOf(schedule, stage);
    const int position =
        beside >= 0 ? graph.PositionOf(beside) : static_cast<int>(schedule.ranks[rank].size());
    return Missing(schedule, {stage, missing, microbatch}, rank, position);
  }
  return absl::OkStatus();
}

// Where the vocabulary is spread, every rank has an S and a T of each microbatch. The microbatches
// ascend, so that all ranks meet over them in one order, and S comes before T.
absl::Status CheckVocabulary(const ActionGraph& graph) {
  const Schedule& schedule = graph.schedule();
  if (!schedule.spreads_vocabulary) return absl::OkStatus();
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    const int end = static_cast<int>(schedule.ranks[rank].size());
    ActionNumber before[] = {-1, -1};  // the S and the T of the microbatch before
    for (int m = 0; m < schedule.num_microbatches; ++m) {
      const ActionNumber forward = graph.VocabularyForward(rank, MicrobatchId(m));
      const ActionNumber backward = graph.VocabularyBackward(rank, MicrobatchId(m));
      if (forward < 0 || backward < 0) {
        const Action missing{
            StageId(schedule.num_stages),
            forward < 0 ? ActionKind::kVocabularyForward : ActionKind::kVocabularyBackward,
            MicrobatchId(m)};
        return Guilty(schedule, rank, end, missing.ToString(),
                      "is missing: every rank has one S and one T of each microbatch, also a rank "
                      "without words",
                      "add it");
      }
      const auto comes_before = [&](ActionNumber early, ActionNumber late) {
        return Guilty(
            schedule, rank, graph.PositionOf(early), graph.At(early).ToString(),
            absl::StrCat("comes before ", graph.At(late).ToString(), " (", Place(graph, late), ")"),
            "list S and T in ascending order of microbatches, and S before its T");
      };
      if (forward < before[0]) return comes_before(forward, before[0]);
      if (backward < before[1]) return comes_before(backward, before[1]);
      if (backward < forward) return comes_before(backward, forward);
      before[0] = forward;
      before[1] = backward;
    }
  }
  return absl::OkStatus();
}

// Every action is on a rank of its stage. In a bidirectional schedule each microbatch may use
// either copy, but only one of them.
absl::Status CheckPlacement(const ActionGraph& graph) {
  const Schedule& schedule = graph.schedule();
  const bool two_ways = schedule.placement == Placement::kBidirectional;
  for (ActionNumber number = 0; number < graph.num_actions(); ++number) {
    const Action& action = graph.At(number);
    if (IsOfVocabulary(action.kind)) continue;  // these are on every rank
    const int rank = graph.RankOf(number);
    const int home = graph.HomeOf(action.stage, action.microbatch).value();
    if (rank == home) continue;
    std::string rule = absl::StrCat("is on rank ", rank, ", but stage ", action.stage.value(),
                                    " lives on rank ", home);
    if (two_ways) {
      absl::StrAppend(&rule, " for microbatch ", action.microbatch.value(), ", which flows ",
                      graph.FlowsUp(action.microbatch) ? "up" : "down");
    }
    absl::StrAppend(&rule, " (placement ", std::string(PlacementName(schedule.placement)), ")");
    return Guilty(schedule, rank, graph.PositionOf(number), action.ToString(), rule,
                  absl::StrCat("move it to row ", home + 1));
  }
  return absl::OkStatus();
}

// Both copies of the weights are used. One without a microbatch would have no gradient to add.
absl::Status CheckBothWays(const ActionGraph& graph) {
  const Schedule& schedule = graph.schedule();
  if (schedule.placement != Placement::kBidirectional) return absl::OkStatus();
  int num_up = 0;
  for (int m = 0; m < schedule.num_microbatches; ++m) num_up += graph.FlowsUp(MicrobatchId(m));
  if (num_up > 0 && num_up < schedule.num_microbatches) return absl::OkStatus();
  const int rank = num_up == 0 ? 0 : schedule.num_ranks() - 1;
  const ActionNumber first = graph.Forward(StageId(0), MicrobatchId(0));
  return Guilty(schedule, rank, graph.PositionOf(first), graph.At(first).ToString(),
                absl::StrCat("flows ", num_up == 0 ? "down" : "up",
                             " like all other microbatches (placement bidirectional)"),
                "let some flow the other way, or use placement loop");
}

// An action that joins is an F, and the B of another microbatch comes right after it.
absl::Status CheckPairs(const Schedule& schedule) {
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    const Row& row = schedule.ranks[rank];
    for (int i = 0; i < static_cast<int>(row.size()); ++i) {
      if (!row[i].joins_next) continue;
      const auto guilty = [&](std::string rule) {
        return Guilty(schedule, rank, i, row[i].ToString(), rule,
                      "overlap an F with the B of another microbatch, or neither");
      };
      if (row[i].kind != ActionKind::kForward) return guilty("is no F, and only an F joins a B");
      if (i + 1 == static_cast<int>(row.size())) return guilty("joins a B, but ends its row");
      if (!BeginsPair(row, i)) {
        return guilty(absl::StrCat("joins ", row[i + 1].ToString(), ", which is no B"));
      }
      if (row[i].microbatch == row[i + 1].microbatch) {
        return guilty(absl::StrCat("joins ", row[i + 1].ToString(), " of its own microbatch"));
      }
    }
  }
  return absl::OkStatus();
}

// In the row F comes before I, and I before W.
absl::Status CheckRowOrder(const ActionGraph& graph) {
  for (ActionNumber number = 0; number < graph.num_actions(); ++number) {
    const Action& action = graph.At(number);
    if (action.kind == ActionKind::kForward || IsOfVocabulary(action.kind)) continue;
    const ActionNumber needed = action.kind == ActionKind::kWeightGrad
                                    ? graph.Gradient(action.stage, action.microbatch)
                                    : graph.Forward(action.stage, action.microbatch);
    if (needed < number) continue;
    return Guilty(graph.schedule(), graph.RankOf(number), graph.PositionOf(number),
                  action.ToString(),
                  absl::StrCat("comes before ", graph.At(needed).ToString(), " (",
                               Place(graph, needed), "), which it needs"),
                  absl::StrCat("put it after ", graph.At(needed).ToString()));
  }
  return absl::OkStatus();
}

// Data dependencies and rows together have no cycle. If they have, the error spells it out.
absl::Status CheckAcyclic(const ActionGraph& graph) {
  const std::optional<WaitingCycle> cycle = FindWaitingCycle(graph);
  if (!cycle.has_value()) return absl::OkStatus();
  return Guilty(graph.schedule(), cycle->rank, cycle->position,
                graph.schedule().ranks[cycle->rank][cycle->position].ToString(),
                absl::StrCat("can never start: ", cycle->text),
                "change the order of one of these rows");
}

absl::Status CheckInFlight(const Schedule& schedule, int limit) {
  if (limit <= 0) return absl::OkStatus();
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    const std::vector<Action>& row = schedule.ranks[rank];
    int in_flight = 0;
    for (int i = 0; i < static_cast<int>(row.size()); ++i) {
      if (row[i].kind == ActionKind::kWeightGrad || row[i].kind == ActionKind::kBackward)
        --in_flight;
      if (row[i].kind != ActionKind::kForward || ++in_flight <= limit) continue;
      return Guilty(schedule, rank, i, row[i].ToString(),
                    absl::StrCat("would be number ", in_flight, " in flight on rank ", rank,
                                 ", the limit is ", limit),
                    "start it after another microbatch's W or B, or raise the limit");
    }
  }
  return absl::OkStatus();
}

// Returns the first W or B of each stage that comes after one of a later microbatch, and that one.
std::vector<std::pair<Action, int>> OutOfOrder(const Schedule& schedule) {
  std::vector<std::pair<Action, int>> found;
  std::set<StageId> stages;
  for (const Row& row : schedule.ranks) {
    absl::flat_hash_map<int, int> last;  // by stage: a microbatch of this copy of it
    for (const Action& action : row) {
      if (action.kind != ActionKind::kWeightGrad && action.kind != ActionKind::kBackward) continue;
      const int microbatch = action.microbatch.value();
      int& before = last.try_emplace(action.stage.value(), microbatch).first->second;
      if (microbatch < before && stages.insert(action.stage).second)
        found.emplace_back(action, before);
      before = microbatch;
    }
  }
  return found;
}

}  // namespace

absl::Status Validate(const Schedule& schedule, const ValidateOptions& options) {
  RETURN_IF_ERROR(CheckSizes(schedule));
  RETURN_IF_ERROR(CheckMaySpread(schedule));
  RETURN_IF_ERROR(CheckRange(schedule));
  RETURN_IF_ERROR(CheckEnough(schedule));
  const ActionGraph graph(schedule);
  RETURN_IF_ERROR(CheckNoneDoubled(graph));
  RETURN_IF_ERROR(CheckNoneMissing(graph));
  RETURN_IF_ERROR(CheckVocabulary(graph));
  RETURN_IF_ERROR(CheckPlacement(graph));
  RETURN_IF_ERROR(CheckBothWays(graph));
  RETURN_IF_ERROR(CheckPairs(schedule));
  RETURN_IF_ERROR(CheckRowOrder(graph));
  RETURN_IF_ERROR(CheckAcyclic(graph));
  return CheckInFlight(schedule, options.max_in_flight);
}

bool AccumulatesInOrder(const Schedule& schedule) { return OutOfOrder(schedule).empty(); }

std::vector<std::string> Warnings(const Schedule& schedule) {
  std::vector<std::string> warnings;
  if (schedule.updates != Updates::kFlush) {
    warnings.push_back(absl::StrCat(schedule.name,
                                    " updates with gradients at older weights: the loss will not "
                                    "be that of schedules that flush"));
  }
  for (const auto& [action, before] : OutOfOrder(schedule)) {
    warnings.push_back(absl::StrCat(
        "stage ", action.stage.value(), " accumulates weight gradients out of microbatch order (",
        action.ToString(), " after microbatch ", before,
        "): the loss will not have the same bits as with other schedules"));
  }
  return warnings;
}

std::vector<int> PeakInFlight(const Schedule& schedule) {
  std::vector<int> peaks;
  for (const std::vector<Action>& row : schedule.ranks) {
    int in_flight = 0;
    int peak = 0;
    for (const Action& action : row) {
      if (action.kind == ActionKind::kForward) peak = std::max(peak, ++in_flight);
      if (action.kind == ActionKind::kWeightGrad || action.kind == ActionKind::kBackward)
        --in_flight;
    }
    peaks.push_back(peak);
  }
  return peaks;
}

}  // namespace takt::schedule
