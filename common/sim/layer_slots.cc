// SPDX-License-Identifier: Apache-2.0
#include "common/sim/layer_slots.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace takt::sim {

using program::SlotKind;

namespace {

void Append(const std::vector<SlotId>& from, std::vector<SlotId>& to) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

LayerSlots::LayerSlots(const program::Program& program) : num_stages_(program.num_stages) {
  for (std::size_t i = 0; i < program.slots.size(); ++i) {
    const SlotId id(static_cast<std::int32_t>(i));
    const program::Slot& slot = program.slots[i];
    Stage& stage = stages_[slot.stage];
    stage.recomputes |= slot.kind == SlotKind::kRecomputed;
    if (slot.kind == SlotKind::kGradient) {
      stage.gradients.push_back(id);
      gradients_.push_back(id);
    }
    if (slot.kind == SlotKind::kWeights) stage.weights[slot.version].push_back(id);
  }
}

std::vector<SlotId> LayerSlots::Weights(int first, int last) const {
  std::vector<SlotId> found;
  for (const auto& [id, stage] : stages_) {
    for (const auto& [version, slots] : stage.weights) {
      if (version >= first && version <= last) Append(slots, found);
    }
  }
  return found;
}

LayerSlots::Foreseen LayerSlots::ForeseenOf(bool rows) const {
  Foreseen all;
  for (const auto& [id, stage] : stages_) {
    if (IsOfRows(id) != rows) continue;
    Append(stage.gradients, all.gradients);
    for (const auto& [version, slots] : stage.weights) {
      if (version == 0) Append(slots, all.weights);
      if (version == program::kForeseen) Append(slots, all.foreseen);
    }
  }
  // The head's rows follow those of the embedding. Forwards ahead do not read them.
  if (rows && !all.weights.empty()) all.weights.resize(1);
  return all;
}

}  // namespace takt::sim
