// SPDX-License-Identifier: Apache-2.0
#include "common/base/status.h"
#include "worker/train/instructions/bind.h"

namespace takt::train {

// NORM_EXCHANGE: makes norm and loss of a step equal on all ranks.
Bound BindNormExchange(ProgramState& state, const program::Instruction&) {
  const auto run = [&losses = state.losses, &rank = state.rank](StepId step) -> absl::Status {
    LossShare loss = losses.Share(step);
    loss.halting = WeightOf(rank.options.halt_requested);
    ASSIGN_OR_RETURN(const StepResult result, rank.optimizer->Exchange(step, loss));
    rank.results.Put(step, result);
    return absl::OkStatus();
  };
  return engine::MakeBound(nullptr, run);
}

}  // namespace takt::train
