// SPDX-License-Identifier: Apache-2.0
#include "worker/train/instructions/bind.h"

namespace takt::train {

// NORM_PARTIAL: computes the sums of squares of the gradients that this rank counts.
Bound BindNormPartial(ProgramState& state, const program::Instruction&) {
  backend::Backend& backend = *state.rank.compute;
  // Without a flush the next step begins before the exchange, so there is no norm.
  if (program::IsAsynchronous(state.program)) return engine::NothingToDo(backend.stream());
  return engine::MakeBound(backend.stream(),
                           [&optimizer = *state.rank.optimizer, &backend](StepId) {
                             return optimizer.NormPartial(backend);
                           });
}

}  // namespace takt::train
