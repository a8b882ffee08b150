// SPDX-License-Identifier: Apache-2.0
// ROWS, SHARE, GATHER, RETURN and ROWS_GRAD: what all ranks of a pipeline pass to one another where
// the vocabulary is spread. Each is bound to the same memory in every step.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/layout/vocabulary_layout.h"
#include "worker/train/instructions/bind.h"
#include "worker/train/instructions/parts.h"
#include "worker/train/stash_view.h"

namespace takt::train {
namespace {

using program::Instruction;
using program::SlotKind;

using Buffers = std::vector<std::span<std::byte>>;

// Finds the slot of this kind and stage. wanted: whether a meeting has one on this rank.
absl::StatusOr<SlotId> Find(const ProgramState& state, const std::vector<SlotId>& slots,
                            SlotKind kind, StageId stage, bool wanted = true) {
  const SlotId slot = program::FindSlot(state.program, slots, kind, stage);
  if ((slot.value() >= 0) == wanted) return slot;
  return absl::InvalidArgumentError("it does not touch the slots that it needs on this rank");
}

// run: absl::Status(const SpreadMeetings&, StepId).
template <typename Run>
Bound BindMeeting(const ProgramState& state, Run run) {
  const std::optional<SpreadMeetings>& found = state.rank.vocabulary->meetings;
  if (!found.has_value()) return engine::NothingToDo();
  return engine::MakeBound(nullptr, [&meetings = *found, run = std::move(run)](StepId step) {
    return run(meetings, step);
  });
}

}  // namespace

Bound BindRows(ProgramState& state, const Instruction& instruction) {
  const SpreadState& vocabulary = *state.rank.vocabulary;
  ASSIGN_OR_RETURN(const SlotId tokens,
                   Find(state, instruction.reads, SlotKind::kTokens, StageId(-1)));
  ASSIGN_OR_RETURN(const SlotId input, Find(state, instruction.writes, SlotKind::kInput, StageId(0),
                                            vocabulary.is_first));
  const SlotId rows = program::FindSlot(state.program, instruction.reads, SlotKind::kWeights,
                                        instruction.stage, program::kEmbeddingRows);
  if (rows.value() < 0) return absl::InvalidArgumentError("it reads no rows of the embedding");
  const bool foreseen = state.program.slots[rows.value()].version == program::kForeseen;
  const ParameterRef* uses = vocabulary.table;
  if (foreseen && uses != nullptr) {
    if (!vocabulary.foreseen_table.has_value())
      return absl::InvalidArgumentError("no rows are foreseen here");
    uses = &*vocabulary.foreseen_table;
  }
  return BindMeeting(
      state, [&vocabulary, view = ViewOf(state, tokens, instruction.microbatch),
              table = uses == nullptr ? nullptr : uses->weight,
              output = state.slots.Floats(input)](const SpreadMeetings& meetings, StepId step) {
        return meetings.Rows(step, view.tokens, table, vocabulary.MeetingScratch(), output);
      });
}

Bound BindShare(ProgramState& state, const Instruction& instruction) {
  const SpreadState& vocabulary = *state.rank.vocabulary;
  const std::vector<SlotId>& slots = vocabulary.is_root ? instruction.reads : instruction.writes;
  ASSIGN_OR_RETURN(const SlotId slot, Find(state, slots, SlotKind::kHeadInput, instruction.stage));
  return BindMeeting(state, [norm = state.slots.Bytes(slot).first(vocabulary.norm_bytes())](
                                const SpreadMeetings& meetings, StepId step) {
    return meetings.Share(step, norm);
  });
}

Bound BindGather(ProgramState& state, const Instruction& instruction) {
  ASSIGN_OR_RETURN(const SlotId slot,
                   Find(state, instruction.reads, SlotKind::kVocabularyStash, instruction.stage));
  const StashView stash(state.rank.vocabulary->layout.stash, {.kept = state.slots.Room(slot)});
  auto* const parts =
      reinterpret_cast<backend::SoftmaxPart*>(stash[layout::VocabularyStash::kSoftmaxParts]);
  return BindMeeting(state, [parts](const SpreadMeetings& meetings, StepId step) {
    return meetings.Gather(step, parts);
  });
}

Bound BindReturn(ProgramState& state, const Instruction& instruction) {
  const SpreadState& vocabulary = *state.rank.vocabulary;
  ASSIGN_OR_RETURN(const SlotId partial_grads,
                   Find(state, instruction.reads, SlotKind::kPartialGrad, instruction.stage));
  ASSIGN_OR_RETURN(const SlotId head_grad, Find(state, instruction.writes, SlotKind::kHeadGrad,
                                                instruction.stage, vocabulary.is_root));
  const std::size_t bytes = vocabulary.sum_bytes();
  Buffers mine, sums;
  for (int i = 0; i < vocabulary.layout.partial_grads; ++i) {
    const std::int64_t offset = i * vocabulary.layout.sum_bytes;
    mine.push_back(
        state.slots.Bytes(partial_grads).subspan(static_cast<std::size_t>(offset), bytes));
  }
  if (vocabulary.is_root) {
    sums.push_back(state.slots.Bytes(head_grad).first(bytes));
    for (int i = 0; i < vocabulary.layout.meeting_sums; ++i)
      sums.emplace_back(vocabulary.scratch.meetings + i * vocabulary.layout.sum_bytes, bytes);
  }
  return BindMeeting(state, [mine = std::move(mine), sums = std::move(sums)](
                                const SpreadMeetings& meetings, StepId step) {
    return meetings.Return(step, mine, sums);
  });
}

Bound BindRowsGrad(ProgramState& state, const Instruction& instruction) {
  SpreadState& vocabulary = *state.rank.vocabulary;
  ASSIGN_OR_RETURN(const SlotId tokens,
                   Find(state, instruction.reads, SlotKind::kTokens, StageId(-1)));
  ASSIGN_OR_RETURN(const SlotId d_input, Find(state, instruction.reads, SlotKind::kInputGrad,
                                              StageId(0), vocabulary.is_first));
  return BindMeeting(
      state, [&vocabulary, view = ViewOf(state, tokens, instruction.microbatch),
              d_output = state.slots.Floats(d_input)](const SpreadMeetings& meetings, StepId step) {
        float* const gradient = vocabulary.table == nullptr ? nullptr : vocabulary.table->gradient;
        const bool accumulate = std::exchange(vocabulary.table_has_gradients, true);
        return meetings.RowsGrad(step, view.tokens, d_output, vocabulary.MeetingScratch(), gradient,
                                 accumulate);
      });
}

}  // namespace takt::train
