// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <utility>

#include "common/base/status.h"
#include "worker/train/instructions/bind.h"
#include "worker/train/instructions/parts.h"

namespace takt::train {

// B: I and W of one microbatch.
Bound BindBackward(ProgramState& state, const program::Instruction& instruction) {
  ASSIGN_OR_RETURN(const BoundPart part,
                   ResolvePart(state, program::WholePart(instruction), instruction.reads));
  auto bound = BindPart(
      state, part.version,
      {.op = instruction.op, .backward_stage = instruction.stage, .backward = part.buffers},
      [part](StepId step) {
        return PartArguments{.loss = part.loss.Call(step), .accumulate = part.Accumulates()};
      },
      [part](const PartArguments& arguments) {
        return part.stage.Backward(part.buffers, arguments.accumulate, arguments.loss);
      });
  return KeepingLeaf(state, instruction, *state.rank.compute, std::move(bound));
}

// It is not recorded, because only pairs in which ranks meet run like this.
Bound BindBackwardBeside(ProgramState& state, const program::Instruction& instruction) {
  ASSIGN_OR_RETURN(const BoundPart part,
                   ResolvePart(state, program::WholePart(instruction), instruction.reads,
                               /*beside=*/true));
  const auto run = [&rank = state.rank, stages = std::array{instruction.stage},
                    part](StepId step) -> absl::Status {
    RETURN_IF_ERROR(rank.ReadyWeights(stages, part.version, engine::PairHalf::kBackward));
    rank.pair->BeginStep(step);
    return part.stage.Backward(part.buffers, part.Accumulates());
  };
  return KeepingLeaf(state, instruction, state.rank.pair->backward,
                     engine::MakeBound(/*stream=*/nullptr, run));
}

}  // namespace takt::train
