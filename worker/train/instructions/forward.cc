// SPDX-License-Identifier: Apache-2.0
#include "common/base/status.h"
#include "worker/train/instructions/bind.h"
#include "worker/train/instructions/parts.h"

namespace takt::train {

// F of one microbatch.
Bound BindForward(ProgramState& state, const program::Instruction& instruction) {
  ASSIGN_OR_RETURN(const BoundPart part,
                   ResolvePart(state, program::WholePart(instruction), instruction.reads));
  return BindPart(
      state, part.version,
      {.op = instruction.op, .forward_stage = instruction.stage, .forward = part.buffers},
      [part](StepId step) { return PartArguments{.loss = part.loss.Call(step)}; },
      [part](const PartArguments& arguments) {
        return part.stage.Forward(part.buffers, arguments.loss);
      });
}

}  // namespace takt::train
