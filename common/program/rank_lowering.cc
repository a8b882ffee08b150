// SPDX-License-Identifier: Apache-2.0
#include "common/program/rank_lowering.h"

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
                           int rank)
    : graph_(graph),
      schedule_(graph.schedule()),
      options_(options),
      rank_(rank),
      program_{.pp_rank = PpRank(rank),
               .pp_size = graph.schedule().num_ranks(),
               .num_stages = graph.schedule().num_stages,
               .num_microbatches = graph.schedule().num_microbatches,
               .schedule = graph.schedule().name},
      slots_(program_.slots) {}

Program RankLowering::Build(const std::vector<ReceivePoint>& receives) {
  LaneOf(LaneKind::kCompute);
  PrepareStages();
  AddLoad();
  auto receive = receives.begin();
  const int row_length = static_cast<int>(schedule_.ranks[rank_].size());
  for (int position = -1; position < row_length; ++position) {
    if (position >= 0) AddCompute(graph_.Number(rank_, position));
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
    if (graph_.RankOf(graph_.Forward(stage, MicrobatchId(0))) != rank_) continue;
    StageState& state = stages_[stage];
    state.input.resize(num_microbatches);
    state.stash.resize(num_microbatches);
    state.output_grad.resize(num_microbatches);
    state.weight_grads_left = schedule_.num_microbatches;
    for (std::int32_t layer = Shape(stage).first_layer.value();
         layer < Shape(stage).last_layer.value(); ++layer) {
      state.weights.push_back(slots_.Fixed(SlotKind::kWeights, stage, layer));
      state.gradients.push_back(slots_.Fixed(SlotKind::kGradient, stage, layer));
    }
  }
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

void RankLowering::AddCompute(ActionNumber number) {
  const Action& action = graph_.At(number);
  StageState& state = stages_.at(action.stage);
  const bool forward = action.kind == ActionKind::kForward;
  std::vector<SlotId> reads = ComputeReads(action);
  std::vector<SlotId> writes;
  const ActionNumber consumer = graph_.Consumer(action);
  if (consumer >= 0) writes.push_back(HandOver(action, consumer));
  if (forward) {
    state.stash[action.microbatch.value()] =
        slots_.Acquire(SlotKind::kStash, action.stage, Shape(action.stage).stash_bytes);
  }
  if (action.kind != ActionKind::kWeightGrad) {
    writes.push_back(state.stash[action.microbatch.value()]);
  }
  if (AccumulatesWeightGrad(action.kind)) Append(writes, state.gradients);
  if (forward && IsLast(action.stage)) {
    reads.push_back(Scalars());
    writes.push_back(Scalars());
  }
  Instruction& added = Add(OpOf(action.kind), LaneOf(LaneKind::kCompute));
  added.stage = action.stage;
  added.microbatch = action.microbatch;
  added.reads = std::move(reads);
  added.writes = std::move(writes);

  if (consumer >= 0 && graph_.RankOf(consumer) != rank_) {
    AddSend(number, added.writes.front(), graph_.RankOf(consumer));
  }
  if (AccumulatesWeightGrad(action.kind)) FinishMicrobatch(action);
}

void RankLowering::AddSend(ActionNumber number, SlotId slot, int peer) {
  const Action& action = graph_.At(number);
  const Direction direction =
      action.kind == ActionKind::kForward ? Direction::kActivation : Direction::kGradient;
  Instruction& added = Add(Op::kSend, LaneOf(LaneKind::kSend, peer, direction));
  added.stage = action.stage;
  added.microbatch = action.microbatch;
  added.reads = {slot};
}

void RankLowering::FinishMicrobatch(const Action& action) {
  StageState& state = stages_.at(action.stage);
  const int m = action.microbatch.value();
  slots_.Release(state.stash[m]);
  if (!IsFirst(action.stage)) slots_.Release(state.input[m]);
  if (!IsLast(action.stage)) slots_.Release(state.output_grad[m]);
  if (--state.weight_grads_left == 0 && options_.reduce_gradients) AddReductions(action.stage);
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
  std::vector<SlotId> weights;
  std::vector<SlotId> gradients;
  for (const auto& [stage, state] : stages_) {
    Append(weights, state.weights);
    Append(gradients, state.gradients);
  }
  Instruction& partial = Add(Op::kNormPartial, LaneOf(LaneKind::kCompute));
  partial.reads = gradients;
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
