// SPDX-License-Identifier: Apache-2.0
#include "common/sim/vocabulary_flow.h"

#include <algorithm>

namespace takt::sim {

using program::Instruction;
using program::kEmbeddingRows;
using program::kHeadRows;
using program::Op;
using program::Program;
using program::SlotKind;

namespace {

SlotId FindKind(const Program& program, const std::vector<SlotId>& slots, SlotKind kind) {
  const auto found = std::find_if(slots.begin(), slots.end(), [&](SlotId slot) {
    return program.slots[slot.value()].kind == kind;
  });
  return found == slots.end() ? SlotId(-1) : *found;
}

}  // namespace

VocabularyFlow::VocabularyFlow(const Program& program)
    : program_(program),
      has_first_(program::HeldStages(program).contains(StageId(0))),
      is_root_(program::HeldStages(program).contains(StageId(program.num_stages - 1))) {}

std::string VocabularyFlow::Step(const Instruction& instruction, int step, SlotContents& contents,
                                 std::vector<Gradient>& gradients) const {
  const SlotId tokens = Read(instruction, SlotKind::kTokens);
  if (tokens.value() >= 0) {
    if (contents.At(tokens).what != What::kTokens) return "comes before LOAD";
    if (contents.At(tokens).step != step) return "finds other tokens";
  }
  const bool has_weights = Read(instruction, SlotKind::kWeights).value() >= 0;
  if (has_weights && contents.UpdatesOfWeights(instruction.reads) != step)
    return "meets the rows of another step";
  std::string problem;
  switch (instruction.op) {
    case Op::kRows:
    case Op::kRowsGrad:
      problem = Embed(instruction, step, contents);
      break;
    case Op::kVocabularyForward:
    case Op::kVocabularyBackward:
    case Op::kLoss:
      problem = Head(instruction, step, contents);
      break;
    default:
      problem = Pass(instruction, step, contents);
  }
  if (!problem.empty()) return problem;
  for (const SlotId slot : instruction.writes) {
    if (program_.slots[slot.value()].kind == SlotKind::kGradient) {
      ++gradients[slot.value()].accumulated;
    }
  }
  return "";
}

bool VocabularyFlow::MakesLoss(const Instruction& instruction) const {
  return instruction.op == Op::kVocabularyBackward &&
         Written(instruction, SlotKind::kScalars).value() >= 0;
}

// ROWS and ROWS_GRAD.
std::string VocabularyFlow::Embed(const Instruction& instruction, int step,
                                  SlotContents& contents) const {
  if (!TouchesRows(instruction, kEmbeddingRows)) return "does not touch the rows of the embedding";
  const bool forward = instruction.op == Op::kRows;
  const SlotId passed =
      forward ? Written(instruction, SlotKind::kInput) : Read(instruction, SlotKind::kInputGrad);
  if ((passed.value() >= 0) != has_first_) {
    return has_first_ ? "passes no rows to or from stage 0" : "passes rows without having stage 0";
  }
  if (!has_first_) return "";
  if (forward) {  // to stage 0 it is like the output of a stage before it
    contents.Set(passed, {What::kActivation, StageId(-1), instruction.microbatch, step});
    return "";
  }
  const Content gradient = {What::kGradient, StageId(0), instruction.microbatch, step};
  return contents.Holds(passed, gradient) ? "" : "finds another gradient in its slot";
}

// S, T and LOSS.
std::string VocabularyFlow::Head(const Instruction& instruction, int step,
                                 SlotContents& contents) const {
  if (!TouchesRows(instruction, kHeadRows)) return "does not touch the rows of the head";
  const SlotId head_input = Read(instruction, SlotKind::kHeadInput);
  if (instruction.op != Op::kLoss &&
      !contents.Holds(head_input, Of(instruction, What::kHeadInput, step))) {
    return "finds another head input in its slot";
  }
  if (instruction.op == Op::kVocabularyForward) {
    contents.Set(Written(instruction, SlotKind::kVocabularyStash),
                 Of(instruction, What::kParts, step));
    return "";
  }
  const SlotId stash = Read(instruction, SlotKind::kVocabularyStash);
  if (!contents.Holds(stash, Of(instruction, What::kAllParts, step))) {
    return "does not find the parts of all ranks in its slot";
  }
  const SlotId scalars = Written(instruction, SlotKind::kScalars);
  if ((scalars.value() >= 0) != is_root_) {
    return is_root_ ? "reports no loss" : "reports a loss and is not the root";
  }
  if (is_root_ && program_.slots[scalars.value()].index != 0) return "leaves its loss elsewhere";
  if (instruction.op == Op::kLoss) return "";
  if (Written(instruction, SlotKind::kVocabularyStash) != stash) {
    return "leaves its stash in another slot than it found";
  }
  contents.Set(stash, {});
  contents.Set(head_input, {});
  contents.Set(Written(instruction, SlotKind::kPartialGrad),
               Of(instruction, What::kPartialGrad, step));
  return "";
}

// SHARE, GATHER and RETURN.
std::string VocabularyFlow::Pass(const Instruction& instruction, int step,
                                 SlotContents& contents) const {
  if (instruction.op == Op::kGather) {
    const SlotId stash = instruction.reads[0];
    if (!contents.Holds(stash, Of(instruction, What::kParts, step))) {
      return "finds other parts in its slot";
    }
    contents.Set(stash, Of(instruction, What::kAllParts, step));
    return "";
  }
  if (instruction.op == Op::kShare) {
    const SlotId shared = Read(instruction, SlotKind::kHeadInput);
    if ((shared.value() >= 0) != is_root_) return "shares from another rank than the root";
    const Content head_input = Of(instruction, What::kHeadInput, step);
    if (is_root_) return contents.Holds(shared, head_input) ? "" : "finds another head input";
    contents.Set(instruction.writes[0], head_input);
    return "";
  }
  const SlotId partial = Read(instruction, SlotKind::kPartialGrad);
  if (!contents.Holds(partial, Of(instruction, What::kPartialGrad, step))) {
    return "finds another gradient in its slot";
  }
  contents.Set(partial, {});
  const SlotId whole = Written(instruction, SlotKind::kHeadGrad);
  if ((whole.value() >= 0) != is_root_) return "returns to another rank than the root";
  if (is_root_) contents.Set(whole, Of(instruction, What::kHeadGrad, step));
  return "";
}

bool VocabularyFlow::TouchesRows(const Instruction& instruction, std::int32_t use) const {
  const auto is_of_use = [&](SlotId id) {
    const program::Slot& slot = program_.slots[id.value()];
    const bool of_rows = slot.kind == SlotKind::kWeights || slot.kind == SlotKind::kGradient;
    return !of_rows || slot.index == use;
  };
  return std::ranges::all_of(instruction.reads, is_of_use) &&
         std::ranges::all_of(instruction.writes, is_of_use);
}

Content VocabularyFlow::Of(const Instruction& instruction, What what, int step) const {
  return {what, StageId(program_.num_stages), instruction.microbatch, step};
}

SlotId VocabularyFlow::Read(const Instruction& instruction, SlotKind kind) const {
  return FindKind(program_, instruction.reads, kind);
}

SlotId VocabularyFlow::Written(const Instruction& instruction, SlotKind kind) const {
  return FindKind(program_, instruction.writes, kind);
}

}  // namespace takt::sim
