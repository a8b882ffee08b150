// SPDX-License-Identifier: Apache-2.0
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "worker/train/instructions/bind.h"
#include "worker/train/instructions/parts.h"

namespace takt::train {
namespace {

Bound BindSeveral(ProgramState& state, const BoundPart& first,
                  std::vector<StageBuffers> microbatches) {
  const auto run = [&parameters = *state.rank.parameters, first,
                    microbatches = std::move(microbatches)](StepId) {
    parameters.SelectVersion(first.version);
    return first.stage.WeightGrad(microbatches, first.Accumulates());
  };
  return engine::MakeBound(state.rank.compute->stream(), run);
}

}  // namespace

// W of one microbatch, or of several in ascending order. W of several is never recorded.
Bound BindWeightGrad(ProgramState& state, const program::Instruction& instruction) {
  std::vector<BoundPart> parts;
  std::vector<StageBuffers> microbatches;
  for (const program::ComputePart& each : program::MicrobatchParts(instruction, state.program)) {
    ASSIGN_OR_RETURN(const BoundPart part, ResolvePart(state, each, instruction.reads));
    parts.push_back(part);
    microbatches.push_back(part.buffers);
  }
  if (parts.empty()) {
    return absl::InvalidArgumentError("its microbatches do not read the same number of slots");
  }
  const BoundPart part = parts.front();
  if (parts.size() > 1) return BindSeveral(state, part, std::move(microbatches));
  auto bound = BindPart(
      state, part.version,
      {.op = instruction.op, .backward_stage = instruction.stage, .backward = part.buffers},
      [part](StepId) { return PartArguments{.accumulate = part.Accumulates()}; },
      [part](const PartArguments& arguments) {
        return part.stage.WeightGrad({&part.buffers, 1}, arguments.accumulate);
      });
  return KeepingLeaf(state, instruction, *state.rank.compute, std::move(bound));
}

}  // namespace takt::train
