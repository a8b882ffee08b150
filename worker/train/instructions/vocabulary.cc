// SPDX-License-Identifier: Apache-2.0
// S, T and LOSS: what a rank computes where the vocabulary is spread.
#include <cstddef>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/layout/vocabulary_layout.h"
#include "worker/train/instructions/bind.h"
#include "worker/train/instructions/parts.h"
#include "worker/train/stash_view.h"

namespace takt::train {
namespace {

using layout::VocabularyStash;
using program::Instruction;
using program::SlotKind;

SlotId TokensOf(const ProgramState& state, const Instruction& instruction) {
  return program::FindSlot(state.program, instruction.reads, SlotKind::kTokens, StageId(-1));
}

// Finds the slots of S, T or LOSS by their kinds.
absl::StatusOr<SpreadHeadMemory> MemoryOf(const ProgramState& state,
                                          const Instruction& instruction) {
  const SpreadState& vocabulary = *state.rank.vocabulary;
  const auto find = [&](const std::vector<SlotId>& slots, SlotKind kind) {
    return program::FindSlot(state.program, slots, kind, instruction.stage);
  };
  const SlotId tokens = TokensOf(state, instruction);
  SlotId stash_slot = find(instruction.reads, SlotKind::kVocabularyStash);
  if (stash_slot.value() < 0) stash_slot = find(instruction.writes, SlotKind::kVocabularyStash);
  if (tokens.value() < 0 || stash_slot.value() < 0)
    return absl::InvalidArgumentError("it does not touch tokens and a stash of the vocabulary");

  const StashView stash(vocabulary.layout.stash, {.kept = state.slots.Room(stash_slot)});
  SpreadHeadMemory memory{
      .view = ViewOf(state, tokens, instruction.microbatch),
      .parts = reinterpret_cast<backend::SoftmaxPart*>(stash[VocabularyStash::kSoftmaxParts]),
      .softmax = reinterpret_cast<backend::SoftmaxRow*>(stash[VocabularyStash::kSoftmax])};
  for (std::size_t i = VocabularyStash::kLogits; i < vocabulary.layout.stash.size(); ++i)
    memory.logits.push_back(stash.Tensor(i));

  const auto bytes_of = [&](SlotId slot) {
    return reinterpret_cast<std::byte*>(state.slots.Floats(slot));
  };
  // LOSS needs no more.
  memory.norm =
      TensorAt(bytes_of(find(instruction.reads, SlotKind::kHeadInput)), vocabulary.norm_in_bf16);
  const SlotId partial_grads = find(instruction.writes, SlotKind::kPartialGrad);
  if (partial_grads.value() < 0) return memory;
  for (int i = 0; i < vocabulary.head.partial_sums().most; ++i) {
    memory.sums.push_back(
        TensorAt(vocabulary.SumOfBlocks(bytes_of(partial_grads), i), vocabulary.sums_in_bf16));
  }
  return memory;
}

}  // namespace

// S: computes logits, and what the softmax needs of them, of the rank's blocks.
Bound BindVocabularyForward(ProgramState& state, const Instruction& instruction) {
  ASSIGN_OR_RETURN(const SpreadHeadMemory memory, MemoryOf(state, instruction));
  backend::Backend& backend = *state.rank.compute;
  const auto run = [&rank = state.rank, rows = instruction.stage, &backend,
                    memory](StepId) -> absl::Status {
    RETURN_IF_ERROR(rank.PackGathered(rows));
    return rank.vocabulary->head.Forward(backend, memory);
  };
  return engine::MakeBound(backend.stream(), run);
}

// T: computes the loss of whole rows, and the gradients of the rank's blocks.
Bound BindVocabularyBackward(ProgramState& state, const Instruction& instruction) {
  ASSIGN_OR_RETURN(const SpreadHeadMemory memory, MemoryOf(state, instruction));
  const BoundLoss loss = ResolveLoss(state, TokensOf(state, instruction), instruction.microbatch);
  backend::Backend& backend = *state.rank.compute;
  const auto run = [&vocabulary = *state.rank.vocabulary, &backend, memory,
                    loss](StepId step) -> absl::Status {
    RETURN_IF_ERROR(vocabulary.head.Loss(backend, memory, loss.Call(step)));
    const bool accumulate = std::exchange(vocabulary.head_has_gradients, true);
    return vocabulary.head.Backward(backend, memory, accumulate);
  };
  return engine::MakeBound(backend.stream(), run);
}

// LOSS: the first half of T, where there are no gradients.
Bound BindLoss(ProgramState& state, const Instruction& instruction) {
  ASSIGN_OR_RETURN(const SpreadHeadMemory memory, MemoryOf(state, instruction));
  const BoundLoss loss = ResolveLoss(state, TokensOf(state, instruction), instruction.microbatch);
  backend::Backend& backend = *state.rank.compute;
  const auto run = [&head = state.rank.vocabulary->head, &backend, memory, loss](StepId step) {
    return head.Loss(backend, memory, loss.Call(step));
  };
  return engine::MakeBound(backend.stream(), run);
}

}  // namespace takt::train
