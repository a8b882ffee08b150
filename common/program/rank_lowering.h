// SPDX-License-Identifier: Apache-2.0
// Builds the program of one pp rank: walks its row, lists receives at their points, sends after
// their makers, reductions after a stage's last W, the optimizer at the end. docs/programs.md is
// the table of slots it follows.
#pragma once

#include <deque>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "common/program/lowering.h"
#include "common/program/receive_points.h"
#include "common/program/slot_table.h"
#include "common/schedule/graph.h"

namespace takt::program {

// Borrows graph and options for the call of Build. Once only.
class RankLowering {
 public:
  // options.stages: one for each stage. slots: those of this rank's program lowered before, whose
  // pools are then used in turn (SlotTable); empty: none.
  RankLowering(const schedule::ActionGraph& graph, const LowerOptions& options, int rank,
               std::span<const Slot> slots = {});

  Program Build(const std::vector<ReceivePoint>& receives);

 private:
  // What a stage of this rank holds at the moment, by microbatch.
  struct StageState {
    std::vector<SlotId> input, stash, output_grad, recomputed;
    std::vector<SlotId> weights, gradients;  // by layer of the stage
    int weight_grads_left = 0;               // of this copy
  };
  // What an action touches, by the table; what it hands over comes first in `writes`.
  struct Touched {
    std::vector<SlotId> reads, writes;
  };

  void PrepareStages();
  std::deque<StageId> StagesByLastWeightGrad(int rank) const;
  void AddLoad();
  void AddReceive(const ReceivePoint& receive);
  // The action, or the pair, at this position of the row; with its sends and what it completes.
  void AddCell(int position);
  void AddSend(schedule::ActionNumber number, const Touched& touched);
  void FinishMicrobatch(const schedule::Action& action);
  void AddReductions(StageId stage);
  void AddTiedReduction();
  void AddOptimizer();

  Touched Touch(schedule::ActionNumber number);
  std::vector<SlotId> ComputeReads(const schedule::Action& action);
  // The slot that the neighbour's input goes to: for a send, or for the neighbour itself if it is
  // on this rank.
  SlotId HandOver(const schedule::Action& action, schedule::ActionNumber consumer);

  LaneId LaneOf(LaneKind kind, int peer = -1, Direction direction = Direction::kNone);
  Instruction& Add(Op op, LaneId lane);

  bool IsFirst(StageId stage) const { return stage.value() == 0; }
  bool IsLast(StageId stage) const { return stage.value() == schedule_.num_stages - 1; }
  bool Has(StageId stage) const { return stages_.contains(stage); }
  bool TwoWays() const { return schedule_.placement == schedule::Placement::kBidirectional; }
  const StageShape& Shape(StageId stage) const { return options_.stages[stage.value()]; }
  bool Recomputes(StageId stage) const { return Shape(stage).recomputed_bytes > 0; }
  std::int64_t OutputBytes(int stage) const { return options_.stages[stage].output_bytes; }
  SlotId Tokens() { return slots_.Fixed(SlotKind::kTokens, StageId(-1), 0); }
  SlotId Scalars() { return slots_.Fixed(SlotKind::kScalars, StageId(-1), 0); }

  const schedule::ActionGraph& graph_;
  const schedule::Schedule& schedule_;
  const LowerOptions& options_;
  const int rank_;
  Program program_;
  SlotTable slots_;
  std::map<StageId, StageState> stages_;
  // Stages whose gradients are still to be reduced, in the order of all ranks of their groups.
  std::deque<StageId> reductions_;
  std::map<std::tuple<LaneKind, int, Direction>, LaneId> lanes_;
};

}  // namespace takt::program
