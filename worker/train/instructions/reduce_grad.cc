// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <span>

#include "absl/strings/str_cat.h"
#include "worker/train/instructions/bind.h"

namespace takt::train {

// REDUCE_GRAD: sums the gradients of one layer over all ranks that hold it.
Bound BindReduceGrad(ProgramState& state, const program::Instruction& instruction) {
  transport::Collective* const group = state.rank.ReplicasOf(instruction.stage);
  if (group == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("no other rank holds stage ", instruction.stage.value()));
  }
  const std::span<const LayerParameters> layers = state.rank.parameters->layers();
  const auto layer = std::ranges::find(layers, instruction.layer, &LayerParameters::layer);
  if (layer == layers.end()) return absl::InvalidArgumentError("this rank does not hold its layer");
  const auto run = [group, gradients = layer->gradients](StepId step) {
    return group->AllReduceSum(step, gradients);
  };
  return engine::MakeBound(group->stream(), run);
}

}  // namespace takt::train
