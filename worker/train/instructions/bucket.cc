// SPDX-License-Identifier: Apache-2.0
#include "worker/train/instructions/bucket.h"

#include <algorithm>
#include <cstdint>
#include <span>

namespace takt::train {

const LayerParameters* BucketOf(const ProgramState& state,
                                const program::Instruction& instruction) {
  const ParameterStore& parameters = *state.rank.parameters;
  if (instruction.stage.value() == state.program.num_stages) {
    const auto last = static_cast<std::int32_t>(state.rank.options.model->layers.size()) - 1;
    return parameters.Rows(LayerId(instruction.layer.value() == 0 ? 0 : last));
  }
  const std::span<const LayerParameters> layers = parameters.stage_layers();
  const auto layer = std::ranges::find(layers, instruction.layer, &LayerParameters::layer);
  return layer == layers.end() ? nullptr : &*layer;
}

}  // namespace takt::train
