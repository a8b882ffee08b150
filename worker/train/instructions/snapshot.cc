// SPDX-License-Identifier: Apache-2.0
#include "worker/train/instructions/bind.h"

namespace takt::train {

// SNAPSHOT: copies the newest weights to all other versions.
Bound BindSnapshot(ProgramState& state, const program::Instruction&) {
  backend::Backend& backend = *state.rank.compute;
  return engine::MakeBound(backend.stream(),
                           [&parameters = *state.rank.parameters, &backend](StepId) {
                             return parameters.SpreadNewest(backend);
                           });
}

}  // namespace takt::train
