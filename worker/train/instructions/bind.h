// SPDX-License-Identifier: Apache-2.0
// Binds the instructions of a program to the state of its rank. Each op has a file of its own,
// except those of a spread vocabulary; this is the list of them.
//
// The reader of an assignment (common/control) checks that a program belongs to its job, and this
// folder checks that its instructions agree with the model. Nothing checks it after that.
#pragma once

#include "common/program/program.h"
#include "worker/engine/bound_instruction.h"
#include "worker/train/program_state.h"

namespace takt::train {

using engine::Bound;

// state, instruction: borrowed by the result. The instruction is one of state.program.
// Errors: kInvalidArgument (the instruction does not agree with the model, the partition or the
// groups of the rank), kInternal (a program of this kind has no such op). They name the
// instruction.
Bound BindInstruction(ProgramState& state, const program::Instruction& instruction);

// Binds the B of a pair that runs beside its F (engine::Compute::BindBeside). Errors: as above.
// Precondition: state.rank.pair is not null.
Bound BindBeside(ProgramState& state, const program::Instruction& instruction);

// These bind one op each. BindInstruction adds the instruction's name to their errors.
Bound BindLoad(ProgramState& state, const program::Instruction& instruction);
Bound BindForward(ProgramState& state, const program::Instruction& instruction);
Bound BindInputGrad(ProgramState& state, const program::Instruction& instruction);
Bound BindWeightGrad(ProgramState& state, const program::Instruction& instruction);
Bound BindBackward(ProgramState& state, const program::Instruction& instruction);
Bound BindBackwardBeside(ProgramState& state, const program::Instruction& instruction);
Bound BindOverlap(ProgramState& state, const program::Instruction& instruction);
Bound BindReduceGrad(ProgramState& state, const program::Instruction& instruction);
Bound BindReduceTied(ProgramState& state, const program::Instruction& instruction);
Bound BindNormPartial(ProgramState& state, const program::Instruction& instruction);
Bound BindNormExchange(ProgramState& state, const program::Instruction& instruction);
Bound BindOptimizer(ProgramState& state, const program::Instruction& instruction);
Bound BindSpeculate(ProgramState& state, const program::Instruction& instruction);
Bound BindSnapshot(ProgramState& state, const program::Instruction& instruction);
Bound BindEval(ProgramState& state, const program::Instruction& instruction);
// Precondition: replicas share the optimizer's state.
Bound BindGatherWeights(ProgramState& state, const program::Instruction& instruction);
Bound BindUnshard(ProgramState& state, const program::Instruction& instruction);
Bound BindReshard(ProgramState& state, const program::Instruction& instruction);
// Preconditions of these: the vocabulary is spread.
Bound BindRows(ProgramState& state, const program::Instruction& instruction);
Bound BindShare(ProgramState& state, const program::Instruction& instruction);
Bound BindGather(ProgramState& state, const program::Instruction& instruction);
Bound BindReturn(ProgramState& state, const program::Instruction& instruction);
Bound BindRowsGrad(ProgramState& state, const program::Instruction& instruction);
Bound BindVocabularyForward(ProgramState& state, const program::Instruction& instruction);
Bound BindVocabularyBackward(ProgramState& state, const program::Instruction& instruction);
Bound BindLoss(ProgramState& state, const program::Instruction& instruction);

}  // namespace takt::train
