// SPDX-License-Identifier: Apache-2.0
#include "common/base/status.h"
#include "worker/train/instructions/bind.h"

namespace takt::train {
namespace {

// Returns why the weights of the instruction's stage cannot be whole at times, if they cannot.
absl::Status CheckFreed(const RankState& rank, const program::Instruction& instruction) {
  if (!rank.layout.whole.stages.contains(instruction.stage))
    return absl::InvalidArgumentError("this rank does not hold its stage");
  if (rank.compute->memory_is_host() || rank.options.shapes_only) return absl::OkStatus();
  return absl::InvalidArgumentError("weights are freed in the memory of hosts only");
}

}  // namespace

// UNSHARD: makes the weights of a stage whole, from the shards of all replicas.
Bound BindUnshard(ProgramState& state, const program::Instruction& instruction) {
  RankState& rank = state.rank;
  RETURN_IF_ERROR(CheckFreed(rank, instruction));
  return engine::MakeBound(rank.ReplicasOf(instruction.stage)->stream(),
                           [&rank, stage = instruction.stage](StepId step) {
                             rank.parameters->Place(stage);
                             return rank.shards->Unshard(step, stage);
                           });
}

// RESHARD: frees them.
Bound BindReshard(ProgramState& state, const program::Instruction& instruction) {
  RankState& rank = state.rank;
  RETURN_IF_ERROR(CheckFreed(rank, instruction));
  return engine::MakeBound(nullptr, [&rank, stage = instruction.stage](StepId) {
    rank.parameters->Free(stage);
    return absl::OkStatus();
  });
}

}  // namespace takt::train
