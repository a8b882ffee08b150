// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <span>

#include "absl/strings/str_cat.h"
#include "worker/train/instructions/bind.h"

namespace takt::train {
namespace {

// Returns the layer whose gradients the instruction sums, or null if it is not here. Of rows, the
// instruction names the use: 0 the embedding's, 1 the head's.
const LayerParameters* LayerOf(const ProgramState& state, const program::Instruction& instruction) {
  const ParameterStore& parameters = *state.rank.parameters;
  if (instruction.stage.value() == state.program.num_stages) {
    const auto last = static_cast<std::int32_t>(state.rank.options.model->layers.size()) - 1;
    return parameters.Rows(LayerId(instruction.layer.value() == 0 ? 0 : last));
  }
  const std::span<const LayerParameters> layers = parameters.stage_layers();
  const auto layer = std::ranges::find(layers, instruction.layer, &LayerParameters::layer);
  return layer == layers.end() ? nullptr : &*layer;
}

}  // namespace

// REDUCE_GRAD: sums the gradients of one layer, or of rows, over all ranks that hold them.
Bound BindReduceGrad(ProgramState& state, const program::Instruction& instruction) {
  transport::Collective* const group = state.rank.ReplicasOf(instruction.stage);
  if (group == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("no other rank holds stage ", instruction.stage.value()));
  }
  const LayerParameters* const layer = LayerOf(state, instruction);
  // A rank may have no words, and a layer no parameters but tables that are spread. Then its
  // replicas have none either.
  if (layer == nullptr && program::SpreadsVocabulary(state.program)) return engine::NothingToDo();
  if (layer == nullptr) return absl::InvalidArgumentError("this rank does not hold its layer");
  const auto run = [group, gradients = layer->gradients](StepId step) {
    return group->AllReduceSum(step, gradients);
  };
  return engine::MakeBound(group->stream(), run);
}

}  // namespace takt::train
