// SPDX-License-Identifier: Apache-2.0
#include "common/program/rank_lowering.h"

#include <algorithm>
#include <set>

#include "common/base/status.h"

namespace takt::program {

using schedule::Action;
using schedule::ActionKind;
using schedule::ActionNumber;

namespace {

Op OpOf(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return Op::kForward;
    case ActionKind::kInputGrad:
      return Op::kInputGrad;
    case ActionKind::kWeightGrad:
      return Op::kWeightGrad;
    case ActionKind::kBackward:
      return Op::kBackward;
  }
  TAKT_CHECK(false);
}

bool AccumulatesWeightGrad(ActionKind kind) {
  return kind == ActionKind::kWeightGrad || kind == ActionKind::kBackward;
}

void Append(std::vector<SlotId>& to, const std::vector<SlotId>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

RankLowering::RankLowering(const schedule::ActionGraph& graph, const LowerOptions& options,
                           int rank, std::span<const Slot> slots)
    : graph_(graph),
      schedule_(graph.schedule()),
      options_(options),
      rank_(rank),
      program_{.pp_rank = PpRank(rank),
               .pp_size = graph.schedule().num_ranks(),
               .num_stages = graph.schedule().num_stages,
               .num_microbatches = graph.schedule().num_microbatches,
               .mirror = PpRank(TwoWays() ? schedule_.num_ranks() - 1 - rank : -1),
               .schedule = graph.schedule().name},
      slots_(program_.slots, slots) {}

Program RankLowering::Build(const std::vector<ReceivePoint>& receives) {
  LaneOf(LaneKind::kCompute);
  PrepareStages();
  AddLoad();
  auto receive = receives.begin();
  const int row_length = static_cast<int>(schedule_.ranks[rank_].size());
  for (int position = -1; position < row_length; ++position) {
    if (position >= 0) {
      AddCell(position);
      if (schedule::BeginsPair(schedule_.ranks[rank_], position)) ++position;
    }
    for (; receive != receives.end() && receive->after == position; ++receive) AddReceive(*receive);
  }
  if (options_.tied_embeddings) AddTiedReduction();
  if (options_.optimizer) AddOptimizer();
  return std::move(program_);
}

void RankLowering::PrepareStages() {
  const std::size_t num_microbatches = static_cast<std::size_t>(schedule_.num_microbatches);
  for (int s = 0; s < schedule_.num_stages; ++s) {
    const StageId stage(s);
    const std::vector<PpRank> ranks =
        schedule::RanksOfStage(schedule_.placement, schedule_.num_ranks(), stage);
    if (std::find(ranks.begin(), ranks.end(), PpRank(rank_)) == ranks.end()) continue;
    StageState& state = stages_[stage];
    state.input.resize(num_microbatches);
    state.stash.resize(num_microbatches);
    state.output_grad.resize(num_microbatches);
    state.recomputed.resize(num_microbatches);
    for (std::int32_t layer = Shape(stage).first_layer.value();
         layer < Shape(stage).last_layer.value(); ++layer) {
      state.weights.push_back(slots_.Fixed(SlotKind::kWeights, stage, layer));
      state.gradients.push_back(slots_.Fixed(SlotKind::kGradient, stage, layer));
    }
  }
  for (const Action& action : schedule_.ranks[rank_]) {
    if (AccumulatesWeightGrad(action.kind)) ++stages_.at(action.stage).weight_grads_left;
  }
  // Two ranks hold the same two stages and meet over each: both take the order of the lower rank.
  const int leader = TwoWays() ? std::min(rank_, schedule_.num_ranks() - 1 - rank_) : rank_;
  const bool sums_copies = TwoWays() && options_.optimizer;
  if (options_.reduce_gradients || sums_copies) reductions_ = StagesByLastWeightGrad(leader);
}

// Stages of a rank in the order in which its row completes their gradients.
std::deque<StageId> RankLowering::StagesByLastWeightGrad(int rank) const {
  std::set<StageId> seen;
  std::deque<StageId> stages;
  const schedule::Row& row = schedule_.ranks[rank];
  for (auto action = row.rbegin(); action != row.rend(); ++action) {
    if (AccumulatesWeightGrad(action->kind) && seen.insert(action->stage).second) {
      stages.push_front(action->stage);
    }
  }
  return stages;
}

void RankLowering::AddLoad() {
  if (!Has(StageId(0)) && !Has(StageId(schedule_.num_stages - 1))) return;
  Add(Op::kLoad, LaneOf(LaneKind::kLoad)).writes = {Tokens()};
}

void RankLowering::AddReceive(const ReceivePoint& receive) {
  const Action& made = graph_.At(receive.producer);
  const bool forward = made.kind == ActionKind::kForward;
  const Direction direction = forward ? Direction::kActivation : Direction::kGradient;
  const StageId taker(made.stage.value() + (forward ? 1 : -1));
  const SlotId slot =
      forward ? slots_.Acquire(SlotKind::kInput, taker, OutputBytes(made.stage.value()))
              : slots_.Acquire(SlotKind::kOutputGrad, taker, OutputBytes(taker.value()));
  StageState& state = stages_.at(taker);
  (forward ? state.input : state.output_grad)[made.microbatch.value()] = slot;

  Instruction& added =
      Add(Op::kRecv, LaneOf(LaneKind::kRecv, graph_.RankOf(receive.producer), direction));
  added.stage = made.stage;
  added.microbatch = made.microbatch;
  added.writes = {slot};
}

std::vector<SlotId> RankLowering::ComputeReads(const Action& action) {
  const StageState& state = stages_.at(action.stage);
  const int m = action.microbatch.value();
  std::vector<SlotId> reads;
  if (!IsFirst(action.stage)) reads.push_back(state.input[m]);
  if (IsFirst(action.stage) || IsLast(action.stage)) reads.push_back(Tokens());
  if (action.kind != ActionKind::kForward) {
    reads.push_back(state.stash[m]);
    if (!IsLast(action.stage)) reads.push_back(state.output_grad[m]);
  }
  if (action.kind == ActionKind::kWeightGrad && Recomputes(action.stage)) {
    reads.push_back(state.recomputed[m]);
  }
  Append(reads, state.weights);
  if (AccumulatesWeightGrad(action.kind)) Append(reads, state.gradients);
  return reads;
}

SlotId RankLowering::HandOver(const Action& action, ActionNumber consumer) {
  const bool forward = action.kind == ActionKind::kForward;
  const int stage = action.stage.value();
  const std::int64_t bytes = OutputBytes(forward ? stage : stage - 1);
  if (graph_.RankOf(consumer) != rank_) {
    return slots_.Alternate(forward ? SlotKind::kOutput : SlotKind::kInputGrad, action.stage,
                            bytes);
  }
  const StageId taker(forward ? stage + 1 : stage - 1);
  StageState& state = stages_.at(taker);
  const SlotId slot =
      slots_.Acquire(forward ? SlotKind::kInput : SlotKind::kOutputGrad, taker, bytes);
  (forward ? state.input : state.output_grad)[action.microbatch.value()] = slot;
  return slot;
}

RankLowering::Touched RankLowering::Touch(ActionNumber number) {
  const Action& action = graph_.At(number);
  StageState& state = stages_.at(action.stage);
  const bool forward = action.kind == ActionKind::kForward;
  Touched touched{.reads = ComputeReads(action)};
  const ActionNumber consumer = graph_.Consumer(action);
  if (consumer >= 0) touched.writes.push_back(HandOver(action, consumer));
  if (forward) {
    state.stash[action.microbatch.value()] =
        slots_.Acquire(SlotKind::kStash, action.stage, Shape(action.stage).stash_bytes);
  }
  if (action.kind != ActionKind::kWeightGrad) {
    touched.writes.push_back(state.stash[action.microbatch.value()]);
  }
  if (action.kind == ActionKind::kInputGrad && Recomputes(action.stage)) {
    SlotId& slot = state.recomputed[action.microbatch.value()];
    slot =
        slots_.Acquire(SlotKind::kRecomputed, action.stage, Shape(action.stage).recomputed_bytes);
    touched.writes.push_back(slot);
  }
  if (AccumulatesWeightGrad(action.kind)) Append(touched.writes, state.gradients);
  if (forward && IsLast(action.stage)) {
    touched.reads.push_back(Scalars());
    touched.writes.push_back(Scalars());
  }
  return touched;
}

void RankLowering::AddCell(int position) {
  const ActionNumber number = graph_.Number(rank_, position);
  const Action& action = graph_.At(number);
  const Touched touched = Touch(number);
  Instruction& added = Add(OpOf(action.kind), LaneOf(LaneKind::kCompute));
  added.stage = action.stage;
  added.microbatch = action.microbatch;
  added.reads = touched.reads;
  added.writes = touched.writes;
  if (!schedule::BeginsPair(schedule_.ranks[rank_], position)) {
    AddSend(number, touched);
    FinishMicrobatch(action);
    return;
  }
  const Action& backward = graph_.At(number + 1);
  const Touched touched_by_backward = Touch(number + 1);
  added.op = Op::kOverlap;
  added.backward_stage = backward.stage;
  added.backward_microbatch = backward.microbatch;
  Append(added.reads, touched_by_backward.reads);
  Append(added.writes, touched_by_backward.writes);
  AddSend(number, touched);
  AddSend(number + 1, touched_by_backward);
  FinishMicrobatch(backward);
}

void RankLowering::AddSend(ActionNumber number, const Touched& touched) {
  const Action& action = graph_.At(number);
  const ActionNumber consumer = graph_.Consumer(action);
  if (consumer < 0 || graph_.RankOf(consumer) == rank_) return;
  const Direction direction =
      action.kind == ActionKind::kForward ? Direction::kActivation : Direction::kGradient;
  Instruction& added = Add(Op::kSend, LaneOf(LaneKind::kSend, graph_.RankOf(consumer), direction));
  added.stage = action.stage;
  added.microbatch = action.microbatch;
  added.reads = {touched.writes.front()};
}

void RankLowering::FinishMicrobatch(const Action& action) {
  if (!AccumulatesWeightGrad(action.kind)) return;
  StageState& state = stages_.at(action.stage);
  const int m = action.microbatch.value();
  slots_.Release(state.stash[m]);
  if (action.kind == ActionKind::kWeightGrad && Recomputes(action.stage)) {
    slots_.Release(state.recomputed[m]);
  }
  if (!IsFirst(action.stage)) slots_.Release(state.input[m]);
  if (!IsLast(action.stage)) slots_.Release(state.output_grad[m]);
  --state.weight_grads_left;
  while (!reductions_.empty() && stages_.at(reductions_.front()).weight_grads_left == 0) {
    AddReductions(reductions_.front());
    reductions_.pop_front();
  }
}

void RankLowering::AddReductions(StageId stage) {
  const StageState& state = stages_.at(stage);
  for (std::size_t i = state.gradients.size(); i-- > 0;) {
    Instruction& added = Add(Op::kReduceGrad, LaneOf(LaneKind::kReduce));
    added.stage = stage;
    added.layer = LayerId(Shape(stage).first_layer.value() + static_cast<std::int32_t>(i));
    added.reads = added.writes = {state.gradients[i]};
  }
}

void RankLowering::AddTiedReduction() {
  std::vector<SlotId> gradients;
  const auto first = stages_.find(StageId(0));
  const auto last = stages_.find(StageId(schedule_.num_stages - 1));
  if (first != stages_.end()) gradients.push_back(first->second.gradients.front());
  if (last != stages_.end() &&
      (gradients.empty() || last->second.gradients.back() != gradients[0])) {
    gradients.push_back(last->second.gradients.back());
  }
  if (gradients.empty()) return;
  Instruction& added = Add(Op::kReduceTied, LaneOf(LaneKind::kReduce));
  added.reads = added.writes = gradients;
}

void RankLowering::AddOptimizer() {
  std::vector<SlotId> weights, gradients, counted;
  for (const auto& [stage, state] : stages_) {
    Append(weights, state.weights);
    Append(gradients, state.gradients);
    if (IsPrimary(program_, stage)) Append(counted, state.gradients);
  }
  Instruction& partial = Add(Op::kNormPartial, LaneOf(LaneKind::kCompute));
  partial.reads = counted;
  partial.reads.push_back(Scalars());
  partial.writes = {Scalars()};

  Instruction& exchange = Add(Op::kNormExchange, LaneOf(LaneKind::kReduce));
  exchange.reads = exchange.writes = {Scalars()};

  Instruction& optimizer = Add(Op::kOptimizer, LaneOf(LaneKind::kCompute));
  optimizer.reads = {Scalars()};
  Append(optimizer.reads, gradients);
  optimizer.writes = weights;
}

LaneId RankLowering::LaneOf(LaneKind kind, int peer, Direction direction) {
  const auto [entry, is_new] = lanes_.try_emplace({kind, peer, direction});
  if (is_new) {
    entry->second = LaneId(static_cast<std::int32_t>(program_.lanes.size()));
    program_.lanes.push_back({.kind = kind, .peer = PpRank(peer), .direction = direction});
  }
  return entry->second;
}

Instruction& RankLowering::Add(Op op, LaneId lane) {
  Instruction& added = program_.body.emplace_back();
  added.op = op;
  added.lane = lane;
  return added;
}

}  // namespace takt::program
