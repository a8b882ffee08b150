// SPDX-License-Identifier: Apache-2.0
#include "common/base/status.h"
#include "worker/train/instructions/bind.h"

namespace takt::train {

// NORM_EXCHANGE: makes norm and loss of a step equal on all ranks. Where steps overlap, it says
// whether the foreseen weights are those that OPT will make.
Bound BindNormExchange(ProgramState& state, const program::Instruction&) {
  const auto run = [&losses = state.losses, &rank = state.rank,
                    overlaps = program::OverlapsSteps(state.program)](StepId step) -> absl::Status {
    LossShare loss = losses.Share(step);
    loss.halting = WeightOf(rank.options.halt_requested);
    ASSIGN_OR_RETURN(StepResult result, rank.optimizer->Exchange(step, loss));
    if (overlaps) {
      const bool clipped = rank.optimizer->ClipFactor() != 1;
      result.held = rank.foresight.HoldsIn(step);
      result.undone = clipped && !result.held;
      rank.foresight.Tell(step, clipped);
    }
    rank.results.Put(step, result);
    return absl::OkStatus();
  };
  return engine::MakeBound(nullptr, run);
}

}  // namespace takt::train
