// SPDX-License-Identifier: Apache-2.0
// Who needs whom in a schedule: actions numbered by row and position, the data dependencies between
// them, an order that respects both these and the rows.
#pragma once

#include <cstdint>
#include <vector>

#include "common/schedule/schedule.h"

namespace takt::schedule {

// Number of an action: rows one after the other. -1: none.
using ActionNumber = std::int32_t;

// Borrows the schedule. Not thread-safe to build, then read-only.
class ActionGraph {
 public:
  // Stages and microbatches of all actions must be within the schedule's counts. Of two actions for
  // one purpose (a second 0F0, or 0I0 beside 0B0) the later one is kept.
  explicit ActionGraph(const Schedule& schedule);

  int num_actions() const { return static_cast<int>(rank_of_.size()); }
  const Schedule& schedule() const { return schedule_; }

  int RankOf(ActionNumber action) const { return rank_of_[action]; }
  int PositionOf(ActionNumber action) const { return action - row_begin_[rank_of_[action]]; }
  ActionNumber Number(int rank, int position) const { return row_begin_[rank] + position; }
  const Action& At(ActionNumber action) const {
    return schedule_.ranks[rank_of_[action]][PositionOf(action)];
  }

  // The F, the I or B, the W of a stage and microbatch.
  ActionNumber Forward(StageId stage, MicrobatchId m) const { return forward_[Cell(stage, m)]; }
  ActionNumber Gradient(StageId stage, MicrobatchId m) const { return gradient_[Cell(stage, m)]; }
  ActionNumber WeightGrad(StageId stage, MicrobatchId m) const {
    return weight_grad_[Cell(stage, m)];
  }
  // Bidirectional: whether the F of stage 0 of `m` is on the last rank, so that stage s of `m` is
  // on rank P-1-s. Not if it is missing.
  bool FlowsUp(MicrobatchId m) const;
  // The rank where stage and microbatch belong.
  PpRank HomeOf(StageId stage, MicrobatchId m) const;

  // What stands where `action` belongs: itself, or the one that doubles it.
  ActionNumber Occupant(const Action& action) const;

  // The action of the neighbouring stage whose result `action` takes / that takes its result; -1 at
  // the ends and for W.
  ActionNumber Producer(const Action& action) const;
  ActionNumber Consumer(const Action& action) const;

  // The other half of the overlapped pair that `action` is in; -1 if it stands alone.
  ActionNumber Partner(ActionNumber action) const;

  // All actions, the halves of a pair next to each other, each after its producer, its partner's
  // and its predecessors in the row. Shorter than num_actions() if that is impossible: the rest
  // wait in a cycle.
  std::vector<ActionNumber> TopologicalOrder() const;

 private:
  std::size_t Cell(StageId stage, MicrobatchId m) const {
    return static_cast<std::size_t>(stage.value()) * schedule_.num_microbatches + m.value();
  }

  const Schedule& schedule_;
  std::vector<ActionNumber> row_begin_;
  std::vector<std::int32_t> rank_of_;
  std::vector<ActionNumber> forward_, gradient_, weight_grad_;  // by Cell
};

}  // namespace takt::schedule
