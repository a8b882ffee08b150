// SPDX-License-Identifier: Apache-2.0
#include "common/base/status.h"
#include "worker/train/instructions/bind.h"

namespace takt::train {

// SPECULATE: makes the weights that OPT will make, beside the true ones, for the forwards of the
// next step. In a step that holds, the engine begins it after NORM_EXCHANGE.
Bound BindSpeculate(ProgramState& state, const program::Instruction&) {
  const auto run = [&rank = state.rank](StepId step) -> absl::Status {
    RETURN_IF_ERROR(rank.optimizer->Foresee(*rank.compute, step, step.value(),
                                            /*knows_norm=*/rank.foresight.HoldsIn(step)));
    return rank.Pack(program::kForeseen);
  };
  return engine::MakeBound(state.rank.compute->stream(), run);
}

}  // namespace takt::train
