// SPDX-License-Identifier: Apache-2.0
// Builds the program of one pp rank: walks its row, lists receives at their points, sends after
// their makers, reductions after a stage's last W, updates where the kind of update wants them.
// docs/programs.md has the table of slots that it follows.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "common/program/lowering.h"
#include "common/program/meeting_points.h"
#include "common/program/receive_points.h"
#include "common/program/slot_table.h"
#include "common/program/unrolled_schedule.h"
#include "common/schedule/graph.h"

namespace takt::program {

// Borrows graph, steps and options for the call of Build, which may be called once.
class RankLowering {
 public:
  // graph: of steps.schedule. options.stages: one for each stage. sized: the slots of this rank's
  // program as it was lowered before, whose pools then have their final size (SlotTableOptions).
  // Empty: there is none.
  RankLowering(const schedule::ActionGraph& graph, const UnrolledSchedule& steps,
               const LowerOptions& options, int rank, std::span<const Slot> sized = {});

  // meetings: empty unless the schedule spreads the vocabulary.
  Program Build(const ReceivePoints& receives, const MeetingPoints& meetings);

 private:
  // The slots that a stage of this rank holds at the moment, by microbatch.
  struct StageState {
    std::vector<SlotId> input, stash, output_grad, recomputed;
    std::vector<std::vector<SlotId>> weights;  // by version, by layer of the stage
    std::vector<SlotId> gradients;             // by layer of the stage
    std::vector<SlotId> shards;                // likewise; empty unless weights are freed
    int weight_grads_left = 0;                 // of this copy
  };
  // The slots of the rank's part of the vocabulary, by microbatch, and on the ranks of the
  // last and the first stage those of the head and the embedding.
  struct VocabularyState {
    std::vector<SlotId> head_input, stash, partial_grad, head_grad, embedding_grad;
  };
  // The slots that an action touches, by the table. What it hands over comes first in `writes`.
  struct Touched {
    std::vector<SlotId> reads, writes;
  };

  void PrepareStages();
  std::vector<int> Ages() const;
  std::deque<StageId> StagesByLastWeightGrad(int rank) const;
  void AddSnapshot();
  void PrepareVocabulary();
  // The part of the row from `begin` to before `end`, with its receives and meetings.
  void AddCells(int begin, int end, const std::vector<ReceivePoint>& receives,
                const MeetingPoints& meetings);
  void AddReceive(const ReceivePoint& receive);
  // The action, or the pair, at this position of the row, with its sends and what it completes.
  void AddCell(int position);
  void AddLoad(int microbatch);
  void AddMeeting(const MeetingPoint& meeting);
  // S or T.
  void AddVocabulary(const schedule::Action& action);
  // The slots that ROWS and ROWS_GRAD, or SHARE, GATHER and RETURN, touch.
  void TouchEmbedding(MicrobatchId m, Instruction& meeting);
  void TouchHead(MicrobatchId m, Instruction& meeting);
  // slot: what the action has made. Without a message there is no SEND.
  void AddSend(schedule::ActionNumber number, SlotId slot);
  void FinishMicrobatch(const schedule::Action& action);
  // One W, B, T or ROWS_GRAD less is left for the gradients of `stage`. Adds the reductions that
  // can follow now.
  void FinishGradients(StageId stage);
  void FinishRows();
  void AddReductions(StageId stage);
  // Adds the gathers of all weights, in the order in which the next step needs them.
  void AddGathers();
  void AddTiedReduction();
  // Where weights are freed (LowerOptions::free_weights):
  void PrepareShards(StageId stage);
  // Adds what makes the weights whole that the cell at this position of the row reads.
  void AddUnshards(int position);
  // Frees the weights of a stage, or of all that are whole.
  void AddReshard(StageId stage);
  void AddReshards();
  StageId LastUsed(const std::set<StageId>& needed, int position) const;
  void AddNorm();
  // microbatch: whose gradient is applied; -1: the step's.
  void AddUpdate(MicrobatchId microbatch);

  Touched Touch(schedule::ActionNumber number);
  std::vector<SlotId> ComputeReads(schedule::ActionNumber number);
  // Returns which version of the weights an action reads.
  int VersionOf(schedule::ActionNumber number) const;
  // Returns the slot that the neighbour's input goes to: for a send, or for the neighbour itself if
  // it is on this rank.
  SlotId HandOver(const schedule::Action& action, schedule::ActionNumber consumer);

  LaneId LaneOf(LaneKind kind, int peer = -1, Direction direction = Direction::kNone);
  Instruction& Add(Op op, LaneId lane);
  // The same, of a microbatch that is counted through the steps.
  Instruction& Add(Op op, LaneId lane, StageId stage, MicrobatchId microbatch);

  bool IsFirst(StageId stage) const { return stage.value() == 0; }
  bool IsLast(StageId stage) const { return stage.value() == schedule_.num_stages - 1; }
  // The stage of everything about the vocabulary.
  StageId Vocabulary() const { return StageId(schedule_.num_stages); }
  bool Spreads() const { return schedule_.spreads_vocabulary; }
  bool IsRoot() const { return Has(StageId(schedule_.num_stages - 1)); }
  // A stage that looks up embeddings or computes the loss itself, or that tells documents apart.
  bool ReadsTokens(StageId stage) const {
    return IsLast(stage) || (IsFirst(stage) && !Spreads()) || options_.separate_documents;
  }
  bool ReadsInput(StageId stage) const { return !IsFirst(stage) || Spreads(); }
  bool Has(StageId stage) const { return stages_.contains(stage); }
  bool Flushes() const { return schedule_.updates == schedule::Updates::kFlush; }
  bool UpdatesEachMicrobatch() const {
    return schedule_.updates == schedule::Updates::kEachBackward;
  }
  bool TwoWays() const { return schedule_.placement == schedule::Placement::kBidirectional; }
  const StageShape& Shape(StageId stage) const { return options_.stages[stage.value()]; }
  // Returns the layer of a stage, or the use of rows, that has this place in its lists.
  LayerId LayerAt(StageId stage, std::size_t place) const {
    const std::int32_t first = stage == Vocabulary() ? 0 : Shape(stage).first_layer.value();
    return LayerId(first + static_cast<std::int32_t>(place));
  }
  bool Recomputes(StageId stage) const { return Shape(stage).recomputed_bytes > 0; }
  std::int64_t OutputBytes(int stage) const { return options_.stages[stage].output_bytes; }
  // If there is a flush, one LOAD brings the tokens of all microbatches.
  SlotId Tokens(int microbatch) {
    return slots_.Fixed(SlotKind::kTokens, StageId(-1),
                        Flushes() ? 0 : microbatch % steps_.num_microbatches);
  }
  SlotId Scalars(int index = 0) { return slots_.Fixed(SlotKind::kScalars, StageId(-1), index); }

  const schedule::ActionGraph& graph_;
  const UnrolledSchedule& steps_;
  const schedule::Schedule& schedule_;  // of steps_
  const LowerOptions& options_;
  const int rank_;
  Program program_;
  std::vector<Instruction>* part_ = &program_.prologue;  // to which instructions are added
  SlotTable slots_;
  std::vector<int> ages_;                 // where each microbatch updates
  std::map<StageId, StageState> stages_;  // with the vocabulary's rows, if they are spread
  VocabularyState vocabulary_;
  // Stages whose gradients are still to be reduced, in the order of all ranks of their groups.
  std::deque<StageId> reductions_;
  std::set<StageId> unsharded_;  // stages whose weights are whole, where weights are freed
  std::map<std::tuple<LaneKind, int, Direction>, LaneId> lanes_;
};

}  // namespace takt::program
