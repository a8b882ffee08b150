// SPDX-License-Identifier: Apache-2.0
// The dependency graph of a schedule. It numbers actions by row and position, and has the data
// dependencies between them and an order that respects both these and the rows.
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
  // The stages and microbatches of all actions must be within the schedule's counts, and only a
  // schedule that spreads the vocabulary may have S and T, whose stage is num_stages. If two
  // actions have one purpose (a second 0F0, or 0I0 beside 0B0), the graph keeps the later one.
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
  // The S and the T of a rank and microbatch; -1 unless the schedule spreads the vocabulary.
  ActionNumber VocabularyForward(int rank, MicrobatchId m) const {
    return OfVocabulary(0, rank, m);
  }
  ActionNumber VocabularyBackward(int rank, MicrobatchId m) const {
    return OfVocabulary(1, rank, m);
  }
  // Returns whether `action` is an I or B of the last stage that waits for the T of all ranks.
  bool TakesFromVocabulary(const Action& action) const {
    return schedule_.spreads_vocabulary && action.stage.value() == schedule_.num_stages - 1 &&
           (action.kind == ActionKind::kInputGrad || action.kind == ActionKind::kBackward);
  }
  // Returns whether `action` is the F whose result every S of its microbatch takes.
  bool GivesToVocabulary(const Action& action) const {
    return schedule_.spreads_vocabulary && action.stage.value() == schedule_.num_stages - 1 &&
           action.kind == ActionKind::kForward;
  }
  // Returns what `action` waits for, beside its row: its producer; for an S the F of the last
  // stage, for a T all S, for an I or B of the last stage all T.
  std::vector<ActionNumber> Needs(const Action& action) const;

  // Returns whether the placement is bidirectional and the F of stage 0 of `m` is on the last rank,
  // so that stage s of `m` is on rank P-1-s. False if that F is missing.
  bool FlowsUp(MicrobatchId m) const;
  // Returns the rank where this stage of this microbatch belongs.
  PpRank HomeOf(StageId stage, MicrobatchId m) const;

  // Returns the action that the graph keeps for the purpose of `action`: itself, or the one that
  // doubles it.
  ActionNumber Occupant(ActionNumber action) const;

  // Returns the action of the neighbouring stage whose result `action` takes, and the one that
  // takes its result; -1 at the ends, and for W, S and T.
  ActionNumber Producer(const Action& action) const { return Neighbour(action, -1); }
  ActionNumber Consumer(const Action& action) const { return Neighbour(action, 1); }

  // Returns the other half of the overlapped pair that `action` is in; -1 if it stands alone.
  ActionNumber Partner(ActionNumber action) const;

  // Returns all actions, each after what it needs, what its partner needs and its predecessors in
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
  ActionNumber OfVocabulary(int which, int rank, MicrobatchId m) const {
    if (!schedule_.spreads_vocabulary) return -1;
    return by_rank_[which][VocabularyCell(rank, m)];
  }
  // distance: along the way of the action's result.
  ActionNumber Neighbour(const Action& action, int distance) const;
  std::size_t Cell(StageId stage, MicrobatchId m) const {
    return static_cast<std::size_t>(stage.value()) * schedule_.num_microbatches + m.value();
  }

  std::size_t VocabularyCell(int rank, MicrobatchId m) const {
    return static_cast<std::size_t>(rank) * schedule_.num_microbatches + m.value();
  }

  const Schedule& schedule_;
  std::vector<ActionNumber> row_begin_;
  std::vector<std::int32_t> rank_of_;
  std::array<std::vector<ActionNumber>, 3> by_cell_;  // by Purpose and Cell
  // S, then T, by VocabularyCell; empty unless the schedule spreads the vocabulary.
  std::array<std::vector<ActionNumber>, 2> by_rank_;
};

}  // namespace takt::schedule
