// SPDX-License-Identifier: Apache-2.0
// Finds which action of a schedule needs which: it numbers actions by row and position, and has the
// data dependencies between them and an order that respects both these and the rows.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "common/schedule/schedule.h"

namespace takt::schedule {

// The number of an action. Numbers go through one row after the other. -1: no action.
using ActionNumber = std::int32_t;

// Borrows the schedule. Read-only once built, so any thread may use it.
class ActionGraph {
 public:
  // The stages and microbatches of all actions must be within the schedule's counts. If two actions
  // have one purpose (a second 0F0, or 0I0 beside 0B0), the graph keeps the later one.
  explicit ActionGraph(const Schedule& schedule);

  int num_actions() const { return static_cast<int>(rank_of_.size()); }
  const Schedule& schedule() const { return schedule_; }

  int RankOf(ActionNumber action) const { return rank_of_[action]; }
  int PositionOf(ActionNumber action) const { return action - row_begin_[rank_of_[action]]; }
  ActionNumber Number(int rank, int position) const { return row_begin_[rank] + position; }
  const Action& At(ActionNumber action) const {
    return schedule_.ranks[rank_of_[action]][PositionOf(action)];
  }

  // The F, the I or B, and the W of a stage and microbatch.
  ActionNumber Forward(StageId stage, MicrobatchId m) const { return Of(kForward, stage, m); }
  ActionNumber Gradient(StageId stage, MicrobatchId m) const { return Of(kGradient, stage, m); }
  ActionNumber WeightGrad(StageId stage, MicrobatchId m) const { return Of(kWeightGrad, stage, m); }
  // Returns whether the placement is bidirectional and the F of stage 0 of `m` is on the last rank,
  // so that stage s of `m` is on rank P-1-s. False if that F is missing.
  bool FlowsUp(MicrobatchId m) const;
  // Returns the rank where this stage of this microbatch belongs.
  PpRank HomeOf(StageId stage, MicrobatchId m) const;

  // Returns the action that the graph keeps for the purpose of `action`: itself, or the one that
  // doubles it.
  ActionNumber Occupant(const Action& action) const;

  // Returns the action of the neighbouring stage whose result `action` takes, and the one that
  // takes its result; -1 at the ends and for W.
  ActionNumber Producer(const Action& action) const { return Neighbour(action, -1); }
  ActionNumber Consumer(const Action& action) const { return Neighbour(action, 1); }

  // Returns the other half of the overlapped pair that `action` is in; -1 if it stands alone.
  ActionNumber Partner(ActionNumber action) const;

  // Returns all actions, each after its producer, its partner's producer and its predecessors in
  // the row. The halves of a pair are next to each other. If there is no such order, the result is
  // shorter than num_actions(), because the other actions wait in a cycle.
  std::vector<ActionNumber> TopologicalOrder() const;

 private:
  // A stage and microbatch have one action for each purpose: B serves the one of I.
  enum Purpose { kForward, kGradient, kWeightGrad };
  static Purpose PurposeOf(ActionKind kind) {
    if (kind == ActionKind::kForward) return kForward;
    return kind == ActionKind::kWeightGrad ? kWeightGrad : kGradient;
  }
  ActionNumber Of(Purpose purpose, StageId stage, MicrobatchId m) const {
    return by_cell_[purpose][Cell(stage, m)];
  }
  // distance: along the way of the action's result.
  ActionNumber Neighbour(const Action& action, int distance) const;
  std::size_t Cell(StageId stage, MicrobatchId m) const {
    return static_cast<std::size_t>(stage.value()) * schedule_.num_microbatches + m.value();
  }

  const Schedule& schedule_;
  std::vector<ActionNumber> row_begin_;
  std::vector<std::int32_t> rank_of_;
  std::array<std::vector<ActionNumber>, 3> by_cell_;  // by Purpose and Cell
};

}  // namespace takt::schedule
