// SPDX-License-Identifier: Apache-2.0
// What RankLowering does where the schedule spreads the vocabulary: S, T, the five meetings, and
// their slots.
#include <cstdint>
#include <vector>

#include "common/program/rank_lowering.h"

namespace takt::program {
namespace {

using schedule::Action;
using schedule::ActionKind;

// An empty list: sizes do not matter.
std::int64_t SizeOf(const std::vector<std::int64_t>& by_rank, int rank) {
  return by_rank.empty() ? 0 : by_rank[rank];
}

}  // namespace

// The rows of both tables are like the layers of a stage. Each microbatch adds to their gradients
// in its T and in its ROWS_GRAD.
void RankLowering::PrepareVocabulary() {
  const std::size_t num_microbatches = static_cast<std::size_t>(schedule_.num_microbatches);
  vocabulary_.head_input.resize(num_microbatches);
  vocabulary_.stash.resize(num_microbatches);
  vocabulary_.partial_grad.resize(num_microbatches);
  vocabulary_.head_grad.resize(num_microbatches);
  vocabulary_.embedding_grad.resize(num_microbatches);
  StageState& rows = stages_[Vocabulary()];
  rows.weights.resize(1);
  for (const std::int32_t use : {kEmbeddingRows, kHeadRows}) {
    rows.weights[0].push_back(slots_.Fixed(SlotKind::kWeights, Vocabulary(), use));
    rows.gradients.push_back(slots_.Fixed(SlotKind::kGradient, Vocabulary(), use));
  }
  rows.weight_grads_left = 2 * schedule_.num_microbatches;
}

void RankLowering::AddMeeting(const MeetingPoint& meeting) {
  const MicrobatchId m = meeting.microbatch;
  Instruction& added = Add(meeting.op, LaneOf(LaneKind::kVocabulary), Vocabulary(), m);
  if (meeting.op == Op::kRows || meeting.op == Op::kRowsGrad) {
    TouchEmbedding(m, added);
  } else {
    TouchHead(m, added);
  }
  if (meeting.op == Op::kReturn) slots_.Release(vocabulary_.partial_grad[m.value()]);
  if (meeting.op == Op::kRowsGrad) FinishGradients(Vocabulary());
}

void RankLowering::TouchEmbedding(MicrobatchId m, Instruction& meeting) {
  const StageState& rows = stages_.at(Vocabulary());
  meeting.bytes = SizeOf(options_.vocabulary->rows_bytes, rank_);
  meeting.reads = {Tokens(m.value())};
  if (meeting.op == Op::kRowsGrad) {
    if (Has(StageId(0))) meeting.reads.push_back(vocabulary_.embedding_grad[m.value()]);
    meeting.writes = {rows.gradients[kEmbeddingRows]};
    return;
  }
  meeting.reads.push_back(rows.weights[0][kEmbeddingRows]);
  if (!Has(StageId(0))) return;
  SlotId& input = stages_.at(StageId(0)).input[m.value()];
  input = slots_.Acquire(SlotKind::kInput, StageId(0), m.value(), OutputBytes(0));
  meeting.writes = {input};
}

// meeting: SHARE, GATHER or RETURN.
void RankLowering::TouchHead(MicrobatchId m, Instruction& meeting) {
  const VocabularyShape& shape = *options_.vocabulary;
  const auto acquire = [&](SlotKind kind) {
    return slots_.Acquire(kind, Vocabulary(), m.value(), shape.head_input_bytes);
  };
  if (meeting.op == Op::kGather) {
    meeting.bytes = SizeOf(shape.parts_bytes, rank_);
    meeting.reads = meeting.writes = {vocabulary_.stash[m.value()]};
  } else if (meeting.op == Op::kReturn) {
    meeting.bytes = SizeOf(shape.partial_grad_bytes, rank_);
    meeting.reads = {vocabulary_.partial_grad[m.value()]};
    if (!IsRoot()) return;
    vocabulary_.head_grad[m.value()] = acquire(SlotKind::kHeadGrad);
    meeting.writes = {vocabulary_.head_grad[m.value()]};
  } else if (IsRoot()) {
    meeting.bytes = shape.head_input_bytes;
    meeting.reads = {vocabulary_.head_input[m.value()]};
  } else {
    vocabulary_.head_input[m.value()] = acquire(SlotKind::kHeadInput);
    meeting.writes = {vocabulary_.head_input[m.value()]};
  }
}

void RankLowering::AddVocabulary(const Action& action) {
  const VocabularyShape& shape = *options_.vocabulary;
  const StageState& rows = stages_.at(Vocabulary());
  const int m = action.microbatch.value();
  const bool forward = action.kind == ActionKind::kVocabularyForward;
  const SlotId weights = rows.weights[0][kHeadRows], gradient = rows.gradients[kHeadRows];
  const SlotId head_input = vocabulary_.head_input[m];
  SlotId& stash = vocabulary_.stash[m];
  Instruction& added = Add(forward ? Op::kVocabularyForward : Op::kVocabularyBackward,
                           LaneOf(LaneKind::kCompute), action.stage, action.microbatch);
  if (forward) {
    stash = slots_.Acquire(SlotKind::kVocabularyStash, Vocabulary(), m,
                           SizeOf(shape.stash_bytes, rank_));
    added.reads = {head_input, Tokens(m), weights};
    added.writes = {stash};
    return;
  }
  SlotId& partial_grad = vocabulary_.partial_grad[m];
  partial_grad = slots_.Acquire(SlotKind::kPartialGrad, Vocabulary(), m,
                                SizeOf(shape.partial_grad_bytes, rank_));
  added.reads = {head_input, Tokens(m), stash, weights, gradient};
  added.writes = {stash, partial_grad, gradient};
  if (IsRoot()) {
    added.reads.push_back(Scalars());
    added.writes.push_back(Scalars());
  }
  slots_.Release(head_input);
  slots_.Release(stash);
  FinishGradients(Vocabulary());
}

}  // namespace takt::program
