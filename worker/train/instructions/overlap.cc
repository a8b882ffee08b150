// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <utility>

#include "common/base/status.h"
#include "common/program/split_pairs.h"
#include "worker/train/instructions/bind.h"

namespace takt::train {

// Binds an O as an F and a B, one after the other. An engine binds these two separately.
Bound BindOverlap(ProgramState& state, const program::Instruction& instruction) {
  const program::PairHalves halves = program::HalvesOf(instruction, state.program);
  ASSIGN_OR_RETURN(std::unique_ptr<engine::BoundInstruction> forward,
                   BindForward(state, halves.forward));
  ASSIGN_OR_RETURN(std::unique_ptr<engine::BoundInstruction> backward,
                   BindBackward(state, halves.backward));
  return engine::MakeBound(
      state.rank.compute->stream(),
      [forward = std::move(forward), backward = std::move(backward)](StepId step) -> absl::Status {
        RETURN_IF_ERROR(forward->Run(step));
        return backward->Run(step);
      });
}

}  // namespace takt::train
