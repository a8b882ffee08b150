// SPDX-License-Identifier: Apache-2.0
#include "common/base/status.h"
#include "worker/train/instructions/bind.h"
#include "worker/train/instructions/parts.h"

namespace takt::train {

// I of one microbatch, whose W is an instruction of its own.
Bound BindInputGrad(ProgramState& state, const program::Instruction& instruction) {
  ASSIGN_OR_RETURN(const BoundPart part,
                   ResolvePart(state, program::WholePart(instruction), instruction.reads));
  return BindPart(
      state, part.version,
      {.op = instruction.op, .backward_stage = instruction.stage, .backward = part.buffers},
      [](StepId) { return PartArguments(); },
      [part](const PartArguments&) { return part.stage.InputGrad(part.buffers); });
}

}  // namespace takt::train
