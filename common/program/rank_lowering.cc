// SPDX-License-Identifier: Apache-2.0
#include "common/program/rank_lowering.h"

#include <algorithm>
#include <set>
#include <utility>

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
    case ActionKind::kVocabularyForward:
    case ActionKind::kVocabularyBackward:
      break;  // AddVocabulary adds these
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

RankLowering::RankLowering(const schedule::ActionGraph& graph, const UnrolledSchedule& steps,
                           const LowerOptions& options, int rank, std::span<const Slot> sized)
    : graph_(graph),
      steps_(steps),
      schedule_(steps.schedule),
      options_(options),
      rank_(rank),
      program_{.pp_rank = PpRank(rank),
               .pp_size = schedule_.num_ranks(),
               .num_stages = schedule_.num_stages,
               .num_microbatches = steps.num_microbatches,
               .mirror = PpRank(TwoWays() ? schedule_.num_ranks() - 1 - rank : -1),
               .schedule = schedule_.name},
      slots_(program_.slots, {.reuse = sized.empty() ? SlotReuse::kAnyFree
                                       : Flushes()   ? SlotReuse::kInTurn
                                                     : SlotReuse::kByMicrobatch,
                              .sized = sized,
                              .num_microbatches = steps.num_microbatches}) {}

Program RankLowering::Build(const ReceivePoints& receives, const MeetingPoints& meetings) {
  LaneOf(LaneKind::kCompute);
  PrepareStages();
  const int begin = steps_.prologue_end[rank_];
  AddSnapshot();
  AddCells(0, begin, receives.prologue, /*meetings=*/{});
  part_ = &program_.body;
  part_->reserve(schedule_.ranks[rank_].size() + 2 * receives.body.size() + meetings.size());
  const bool reads_tokens = Has(StageId(0)) || IsRoot() || Spreads() || options_.separate_documents;
  if (Flushes() && reads_tokens) AddLoad(-1);
  AddCells(begin, steps_.body_end[rank_], receives.body, meetings);
  AddReshards();
  if (options_.tied_embeddings && !Spreads()) AddTiedReduction();
  if (options_.optimizer) {
    if (schedule_.updates == schedule::Updates::kDelayed) AddUpdate(MicrobatchId(-1));
    AddNorm();
    if (Flushes()) AddUpdate(MicrobatchId(-1));
    if (options_.shard_optimizer && !options_.free_weights) AddGathers();
  }
  return std::move(program_);
}

void RankLowering::PrepareStages() {
  int num_versions = schedule_.updates == schedule::Updates::kDelayed ? 2 : 1;
  if (UpdatesEachMicrobatch()) {
    ages_ = Ages();
    num_versions = *std::max_element(ages_.begin(), ages_.end()) + 1;
  }
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
    state.weights.resize(static_cast<std::size_t>(num_versions));
    for (std::int32_t layer = Shape(stage).first_layer.value();
         layer < Shape(stage).last_layer.value(); ++layer) {
      for (int version = 0; version < num_versions; ++version) {
        state.weights[version].push_back(slots_.Fixed(SlotKind::kWeights, stage, layer, version));
      }
      state.gradients.push_back(slots_.Fixed(SlotKind::kGradient, stage, layer));
    }
    if (options_.free_weights) PrepareShards(stage);
  }
  if (Spreads()) PrepareVocabulary();
  const schedule::Row& row = schedule_.ranks[rank_];
  for (int i = steps_.prologue_end[rank_]; i < steps_.body_end[rank_]; ++i) {
    if (AccumulatesWeightGrad(row[i].kind)) ++stages_.at(row[i].stage).weight_grads_left;
  }
  // Two ranks hold the same two stages and meet over each: both take the order of the lower rank.
  const int leader = TwoWays() ? std::min(rank_, schedule_.num_ranks() - 1 - rank_) : rank_;
  const bool sums_copies = TwoWays() && options_.optimizer;
  if (options_.reduce_gradients || sums_copies) reductions_ = StagesByLastWeightGrad(leader);
}

// Finds where each microbatch updates: how many updates there are between the F of its microbatch
// and an action, by position in the body.
std::vector<int> RankLowering::Ages() const {
  std::vector<int> at_forward(static_cast<std::size_t>(schedule_.num_microbatches));
  std::vector<int> ages;
  int updates = 0;
  for (const Action& action : schedule_.ranks[rank_]) {
    int& before = at_forward[action.microbatch.value()];
    if (action.kind == ActionKind::kForward) before = updates;
    ages.push_back(updates - before);
    if (AccumulatesWeightGrad(action.kind)) ++updates;
  }
  // The first body begins with what the prologue made before any update. The second one does as all
  // others do.
  return {ages.begin() + steps_.body_end[rank_], ages.end()};
}

// The stages of a rank in the order in which its row completes their gradients.
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

// Before the first step all versions of the weights are the newest.
void RankLowering::AddSnapshot() {
  std::vector<SlotId> newest, others;
  for (const auto& [stage, state] : stages_) {
    Append(newest, state.weights[0]);
    for (std::size_t v = 1; v < state.weights.size(); ++v) Append(others, state.weights[v]);
  }
  if (others.empty()) return;
  Instruction& added = Add(Op::kSnapshot, LaneOf(LaneKind::kCompute));
  added.reads = newest;
  added.writes = others;
}

void RankLowering::AddCells(int begin, int end, const std::vector<ReceivePoint>& receives,
                            const MeetingPoints& meetings) {
  auto receive = receives.begin();
  auto meeting = meetings.begin();
  for (int position = begin - 1; position < end; ++position) {
    if (position >= begin) {
      if (options_.free_weights) AddUnshards(position);
      AddCell(position);
      if (schedule::BeginsPair(schedule_.ranks[rank_], position)) ++position;
    }
    for (; meeting != meetings.end() && meeting->after == position; ++meeting) AddMeeting(*meeting);
    for (; receive != receives.end() && receive->after == position; ++receive) AddReceive(*receive);
  }
}

// microbatch: whose tokens are read; -1: those of the whole step.
void RankLowering::AddLoad(int microbatch) {
  Instruction& added =
      Add(Op::kLoad, LaneOf(LaneKind::kLoad), StageId(-1), MicrobatchId(microbatch));
  added.writes = {Tokens(microbatch)};
}

void RankLowering::AddReceive(const ReceivePoint& receive) {
  const Action& made = graph_.At(receive.producer);
  const bool forward = made.kind == ActionKind::kForward;
  const Direction direction = forward ? Direction::kActivation : Direction::kGradient;
  const StageId taker(made.stage.value() + (forward ? 1 : -1));
  const int m = made.microbatch.value();
  const SlotId slot =
      forward ? slots_.Acquire(SlotKind::kInput, taker, m, OutputBytes(made.stage.value()))
              : slots_.Acquire(SlotKind::kOutputGrad, taker, m, OutputBytes(taker.value()));
  StageState& state = stages_.at(taker);
  (forward ? state.input : state.output_grad)[m] = slot;

  const LaneId lane = LaneOf(LaneKind::kRecv, graph_.RankOf(receive.producer), direction);
  Add(Op::kRecv, lane, made.stage, made.microbatch).writes = {slot};
}

int RankLowering::VersionOf(ActionNumber number) const {
  const int position = graph_.PositionOf(number) - steps_.prologue_end[rank_];
  switch (schedule_.updates) {
    case schedule::Updates::kFlush:
      return 0;
    case schedule::Updates::kEachBackward:
      return position < 0 ? 0 : ages_[position];
    case schedule::Updates::kDelayed:  // the next step's forwards come before the update
      return graph_.At(number).microbatch.value() < steps_.num_microbatches ? 1 : 0;
  }
  TAKT_CHECK(false);
}

std::vector<SlotId> RankLowering::ComputeReads(ActionNumber number) {
  const Action& action = graph_.At(number);
  const StageState& state = stages_.at(action.stage);
  const int m = action.microbatch.value();
  const std::vector<SlotId>& weights = state.weights[VersionOf(number)];
  std::vector<SlotId> reads;
  const bool forward = action.kind == ActionKind::kForward;
  // Programs are large, so hardly any room is left over.
  const std::size_t gradients = AccumulatesWeightGrad(action.kind) ? state.gradients.size() : 0;
  reads.reserve(weights.size() + gradients + (forward ? 2 : 4));
  if (ReadsInput(action.stage)) reads.push_back(state.input[m]);
  if (ReadsTokens(action.stage)) reads.push_back(Tokens(m));
  if (!forward) {
    reads.push_back(state.stash[m]);
    if (!IsLast(action.stage)) reads.push_back(state.output_grad[m]);
    if (graph_.TakesFromVocabulary(action)) reads.push_back(vocabulary_.head_grad[m]);
  }
  if (action.kind == ActionKind::kWeightGrad && Recomputes(action.stage)) {
    reads.push_back(state.recomputed[m]);
  }
  Append(reads, weights);
  if (AccumulatesWeightGrad(action.kind)) Append(reads, state.gradients);
  return reads;
}

SlotId RankLowering::HandOver(const Action& action, ActionNumber consumer) {
  const bool forward = action.kind == ActionKind::kForward;
  const int stage = action.stage.value(), m = action.microbatch.value();
  const std::int64_t bytes = OutputBytes(forward ? stage : stage - 1);
  if (graph_.RankOf(consumer) != rank_) {
    return slots_.Alternate(forward ? SlotKind::kOutput : SlotKind::kInputGrad, action.stage, m,
                            bytes);
  }
  const StageId taker(forward ? stage + 1 : stage - 1);
  StageState& state = stages_.at(taker);
  const SlotId slot =
      slots_.Acquire(forward ? SlotKind::kInput : SlotKind::kOutputGrad, taker, m, bytes);
  (forward ? state.input : state.output_grad)[m] = slot;
  return slot;
}

RankLowering::Touched RankLowering::Touch(ActionNumber number) {
  const Action& action = graph_.At(number);
  StageState& state = stages_.at(action.stage);
  const int m = action.microbatch.value();
  const bool forward = action.kind == ActionKind::kForward;
  Touched touched{.reads = ComputeReads(number)};
  const ActionNumber consumer = graph_.Consumer(action);
  if (consumer >= 0) touched.writes.push_back(HandOver(action, consumer));
  const bool makes_gradient = !forward && action.kind != ActionKind::kWeightGrad;
  if (Spreads() && IsFirst(action.stage) && makes_gradient) {  // for ROWS_GRAD
    vocabulary_.embedding_grad[m] =
        slots_.Alternate(SlotKind::kInputGrad, action.stage, m, OutputBytes(0));
    touched.writes.push_back(vocabulary_.embedding_grad[m]);
  }
  if (forward) {
    state.stash[m] =
        slots_.Acquire(SlotKind::kStash, action.stage, m, Shape(action.stage).stash_bytes);
  }
  if (action.kind != ActionKind::kWeightGrad) touched.writes.push_back(state.stash[m]);
  if (action.kind == ActionKind::kInputGrad && Recomputes(action.stage)) {
    state.recomputed[m] = slots_.Acquire(SlotKind::kRecomputed, action.stage, m,
                                         Shape(action.stage).recomputed_bytes);
    touched.writes.push_back(state.recomputed[m]);
  }
  if (AccumulatesWeightGrad(action.kind)) Append(touched.writes, state.gradients);
  if (graph_.GivesToVocabulary(action)) {
    vocabulary_.head_input[m] = slots_.Acquire(SlotKind::kHeadInput, Vocabulary(), m,
                                               options_.vocabulary->head_input_bytes);
    touched.writes.push_back(vocabulary_.head_input[m]);
  } else if (forward && IsLast(action.stage)) {
    touched.reads.push_back(Scalars());
    touched.writes.push_back(Scalars());
  }
  return touched;
}

void RankLowering::AddCell(int position) {
  const ActionNumber number = graph_.Number(rank_, position);
  const Action& action = graph_.At(number);
  if (schedule::IsOfVocabulary(action.kind)) {
    AddVocabulary(action);
    return;
  }
  if (!Flushes() && action.kind == ActionKind::kForward && ReadsTokens(action.stage)) {
    AddLoad(action.microbatch.value());
  }
  Touched touched = Touch(number);
  const SlotId made = touched.writes.front();
  Instruction& added =
      Add(OpOf(action.kind), LaneOf(LaneKind::kCompute), action.stage, action.microbatch);
  added.reads = std::move(touched.reads);
  added.writes = std::move(touched.writes);
  if (!schedule::BeginsPair(schedule_.ranks[rank_], position)) {
    AddSend(number, made);
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
  AddSend(number, made);
  AddSend(number + 1, touched_by_backward.writes.front());
  FinishMicrobatch(backward);
}

void RankLowering::AddSend(ActionNumber number, SlotId slot) {
  const Action& action = graph_.At(number);
  const ActionNumber consumer = graph_.Consumer(action);
  if (consumer < 0 || graph_.RankOf(consumer) == rank_) return;
  const Direction direction =
      action.kind == ActionKind::kForward ? Direction::kActivation : Direction::kGradient;
  const LaneId lane = LaneOf(LaneKind::kSend, graph_.RankOf(consumer), direction);
  Add(Op::kSend, lane, action.stage, action.microbatch).reads = {slot};
}

void RankLowering::FinishMicrobatch(const Action& action) {
  const int m = action.microbatch.value();
  if (graph_.TakesFromVocabulary(action)) slots_.Release(vocabulary_.head_grad[m]);
  if (!AccumulatesWeightGrad(action.kind)) return;
  StageState& state = stages_.at(action.stage);
  slots_.Release(state.stash[m]);
  if (action.kind == ActionKind::kWeightGrad && Recomputes(action.stage)) {
    slots_.Release(state.recomputed[m]);
  }
  if (ReadsInput(action.stage)) slots_.Release(state.input[m]);
  if (!IsLast(action.stage)) slots_.Release(state.output_grad[m]);
  FinishGradients(action.stage);
  if (UpdatesEachMicrobatch() && options_.optimizer) AddUpdate(action.microbatch);
}

void RankLowering::FinishGradients(StageId stage) {
  --stages_.at(stage).weight_grads_left;
  if (stage == Vocabulary()) {
    FinishRows();
    return;
  }
  while (!reductions_.empty() && stages_.at(reductions_.front()).weight_grads_left == 0) {
    AddReductions(reductions_.front());
    reductions_.pop_front();
  }
}

// All ranks wait for the sums of rows, where these are foreseen, so they come before the sums of
// stages that are not complete yet.
void RankLowering::FinishRows() {
  if (stages_.at(Vocabulary()).weight_grads_left > 0) return;
  if (options_.reduce_gradients) AddReductions(Vocabulary());
  if (options_.tied_embeddings) AddTiedReduction();
}

void RankLowering::AddReductions(StageId stage) {
  const StageState& state = stages_.at(stage);
  for (std::size_t i = state.gradients.size(); i-- > 0;) {
    Instruction& added = Add(Op::kReduceGrad, LaneOf(LaneKind::kReduce));
    added.stage = stage;
    added.layer = LayerAt(stage, i);
    added.reads = added.writes = {state.gradients[i]};
  }
}

// A step begins with rows, then stages in ascending order. A tied table is gathered with the first
// layer that uses it, so that one comes first on every rank that has both.
void RankLowering::AddGathers() {
  const auto add = [&](StageId stage, const StageState& state) {
    for (std::size_t i = 0; i < state.weights[0].size(); ++i) {
      Instruction& added = Add(Op::kGatherWeights, LaneOf(LaneKind::kReduce));
      added.stage = stage;
      added.layer = LayerAt(stage, i);
      added.reads = added.writes = {state.weights[0][i]};
    }
  };
  if (Spreads()) add(Vocabulary(), stages_.at(Vocabulary()));
  for (const auto& [stage, state] : stages_) {
    if (stage != Vocabulary()) add(stage, state);
  }
}

// The two uses of the embedding are on the ranks of the first and the last stage, or where the
// vocabulary is spread, both on every rank for its own rows.
void RankLowering::AddTiedReduction() {
  std::vector<SlotId> gradients;
  const auto first = stages_.find(Spreads() ? Vocabulary() : StageId(0));
  const auto last = stages_.find(Spreads() ? Vocabulary() : StageId(schedule_.num_stages - 1));
  if (first != stages_.end()) gradients.push_back(first->second.gradients.front());
  if (last != stages_.end() &&
      (gradients.empty() || last->second.gradients.back() != gradients[0])) {
    gradients.push_back(last->second.gradients.back());
  }
  if (gradients.empty()) return;
  Instruction& added = Add(Op::kReduceTied, LaneOf(LaneKind::kReduce));
  added.reads = added.writes = gradients;
}

// The sums of one step meet those of the other ranks. Without a flush they wait for that in a slot
// of their own, so that the next step may begin.
void RankLowering::AddNorm() {
  const SlotId sums = Scalars(), meeting = Scalars(Flushes() ? 0 : 1);
  Instruction& partial = Add(Op::kNormPartial, LaneOf(LaneKind::kCompute));
  for (const auto& [stage, state] : stages_) {
    // Of a second copy the rank has shards, which nobody else counts.
    const bool counts = IsPrimary(program_, stage) || options_.shard_optimizer;
    if (Flushes() && counts) Append(partial.reads, state.gradients);
  }
  partial.reads.push_back(sums);
  partial.writes = {sums};
  if (meeting != sums) partial.writes.push_back(meeting);

  Instruction& exchange = Add(Op::kNormExchange, LaneOf(LaneKind::kReduce));
  exchange.reads = exchange.writes = {meeting};
}

void RankLowering::AddUpdate(MicrobatchId microbatch) {
  Instruction& added = Add(Op::kOptimizer, LaneOf(LaneKind::kCompute), StageId(-1), microbatch);
  if (Flushes()) added.reads = {Scalars()};
  for (const auto& [stage, state] : stages_) Append(added.reads, state.gradients);
  for (const auto& [stage, state] : stages_) {
    if (!Flushes()) Append(added.reads, state.weights[0]);
    if (options_.free_weights) {
      Append(added.writes, state.shards);
      continue;
    }
    for (const std::vector<SlotId>& version : state.weights) Append(added.writes, version);
  }
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
  Instruction& added = part_->emplace_back();
  added.op = op;
  added.lane = lane;
  return added;
}

Instruction& RankLowering::Add(Op op, LaneId lane, StageId stage, MicrobatchId microbatch) {
  Instruction& added = Add(op, lane);
  added.stage = stage;
  added.microbatch = microbatch;
  if (microbatch.value() >= steps_.num_microbatches) {
    added.microbatch = MicrobatchId(microbatch.value() % steps_.num_microbatches);
    added.step_ahead = 1;
  }
  return added;
}

}  // namespace takt::program
