// SPDX-License-Identifier: Apache-2.0
#include "worker/train/instructions/bind.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::train {
namespace {

using program::Instruction;
using program::Op;

struct Kind {
  Op op;
  Bound (*bind)(ProgramState& state, const Instruction& instruction);
  bool trains = true, validates = false;  // in which programs it may be
};

constexpr Kind kKinds[] = {
    {.op = Op::kLoad, .bind = BindLoad, .validates = true},
    {.op = Op::kForward, .bind = BindForward, .validates = true},
    {.op = Op::kInputGrad, .bind = BindInputGrad},
    {.op = Op::kWeightGrad, .bind = BindWeightGrad},
    {.op = Op::kBackward, .bind = BindBackward},
    {.op = Op::kOverlap, .bind = BindOverlap},
    {.op = Op::kReduceGrad, .bind = BindReduceGrad},
    {.op = Op::kReduceTied, .bind = BindReduceTied},
    {.op = Op::kNormPartial, .bind = BindNormPartial},
    {.op = Op::kNormExchange, .bind = BindNormExchange},
    {.op = Op::kOptimizer, .bind = BindOptimizer},
    {.op = Op::kSpeculate, .bind = BindSpeculate},
    {.op = Op::kGatherWeights, .bind = BindGatherWeights},
    {.op = Op::kUnshard, .bind = BindUnshard, .validates = true},
    {.op = Op::kReshard, .bind = BindReshard, .validates = true},
    {.op = Op::kSnapshot, .bind = BindSnapshot},
    {.op = Op::kEval, .bind = BindEval, .trains = false, .validates = true},
    {.op = Op::kRows, .bind = BindRows, .validates = true},
    {.op = Op::kShare, .bind = BindShare, .validates = true},
    {.op = Op::kGather, .bind = BindGather, .validates = true},
    {.op = Op::kReturn, .bind = BindReturn},
    {.op = Op::kRowsGrad, .bind = BindRowsGrad},
    {.op = Op::kVocabularyForward, .bind = BindVocabularyForward, .validates = true},
    {.op = Op::kVocabularyBackward, .bind = BindVocabularyBackward},
    {.op = Op::kLoss, .bind = BindLoss, .trains = false, .validates = true},
};

}  // namespace

Bound BindInstruction(ProgramState& state, const Instruction& instruction) {
  const std::string name = program::ToString(instruction, state.program);
  const Kind* const kind = std::ranges::find(kKinds, instruction.op, &Kind::op);
  if (kind == std::end(kKinds) || !(state.trains ? kind->trains : kind->validates)) {
    return absl::InternalError(absl::StrCat(name, ": a ", state.trains ? "training" : "validation",
                                            " program has no such op"));
  }
  if (program::IsOfVocabulary(instruction.op) && state.rank.vocabulary == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": the vocabulary of its job is not spread"));
  }
  Bound bound = kind->bind(state, instruction);
  if (!bound.ok()) return Annotate(bound.status(), name);
  return bound;
}

Bound BindBeside(ProgramState& state, const Instruction& instruction) {
  Bound bound = BindBackwardBeside(state, instruction);
  if (!bound.ok()) return Annotate(bound.status(), program::ToString(instruction, state.program));
  return bound;
}

}  // namespace takt::train
