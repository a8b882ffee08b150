// SPDX-License-Identifier: Apache-2.0
#include "worker/train/instructions/bind.h"

namespace takt::train {

// NORM_PARTIAL: computes the sums of squares of the gradients that this rank counts, and, where
// ranks split layers, first completes the gradients of what is not split.
Bound BindNormPartial(ProgramState& state, const program::Instruction&) {
  backend::Backend& backend = *state.rank.compute;
  // Without a flush the next step begins before the exchange, so there is no norm.
  if (program::IsAsynchronous(state.program)) return engine::NothingToDo(backend.stream());
  const auto run = [&optimizer = *state.rank.optimizer, &backend,
                    meetings = state.rank.meetings.get()](StepId step) {
    if (meetings != nullptr) meetings->BeginStep(step);
    return optimizer.NormPartial(backend, meetings);
  };
  return engine::MakeBound(backend.stream(), run);
}

}  // namespace takt::train
