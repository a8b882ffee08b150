// SPDX-License-Identifier: Apache-2.0
#include "common/base/status.h"
#include "worker/train/instructions/bind.h"
#include "worker/train/instructions/parts.h"

namespace takt::train {

// B: I and W of one microbatch.
Bound BindBackward(ProgramState& state, const program::Instruction& instruction) {
  ASSIGN_OR_RETURN(const BoundPart part,
                   ResolvePart(state, program::WholePart(instruction), instruction.reads));
  return BindPart(
      state, part.version,
      {.op = instruction.op, .backward_stage = instruction.stage, .backward = part.buffers},
      [part](StepId) { return PartArguments{.accumulate = part.Accumulates()}; },
      [part](const PartArguments& arguments) {
        return part.stage.Backward(part.buffers, arguments.accumulate);
      });
}

}  // namespace takt::train
