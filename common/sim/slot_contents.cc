// SPDX-License-Identifier: Apache-2.0
#include "common/sim/slot_contents.h"

#include <cstddef>

namespace takt::sim {

using program::SlotKind;

SlotContents::SlotContents(const program::Program& program)
    : program_(program), contents_(program.slots.size()) {
  const bool frees = program::FreesWeights(program);
  for (std::size_t i = 0; i < contents_.size(); ++i) {
    const program::Slot& slot = program.slots[i];
    if (slot.kind == SlotKind::kShard) contents_[i].what = What::kShards;
    if (slot.kind == SlotKind::kWeights && slot.version == 0 && !frees)
      contents_[i].what = What::kWeights;
  }
}

int SlotContents::UpdatesOfWeights(std::span<const SlotId> slots) const {
  int updates = -1;
  for (const SlotId slot : slots) {
    if (program_.slots[slot.value()].kind != SlotKind::kWeights) continue;
    const Content& found = At(slot);
    if (found.what != What::kWeights || (updates >= 0 && found.updates != updates)) return -1;
    updates = found.updates;
  }
  return updates;
}

bool SlotContents::AreAll(std::span<const SlotId> all, SlotKind kind,
                          std::span<const SlotId> list) const {
  std::size_t found = 0;
  for (const SlotId slot : list) {
    if (program_.slots[slot.value()].kind != kind) continue;
    if (found == all.size() || all[found] != slot) return false;
    ++found;
  }
  return found == all.size();
}

bool SlotContents::AreScalars(std::span<const SlotId> list,
                              std::initializer_list<int> indices) const {
  const int* next = indices.begin();
  for (const SlotId slot : list) {
    const program::Slot& scalars = program_.slots[slot.value()];
    if (scalars.kind != SlotKind::kScalars) continue;
    if (next == indices.end() || scalars.index != *next++) return false;
  }
  return next == indices.end();
}

std::optional<SlotId> SlotContents::FirstNotOneStepAfter(const SlotContents& before,
                                                         int updates) const {
  for (std::size_t i = 0; i < contents_.size(); ++i) {
    Content expected = before.contents_[i];
    const bool weights = expected.what == What::kWeights;
    const bool stash = expected.what == What::kForwardStash || expected.what == What::kStash;
    if (expected.what != What::kNothing && !weights) ++expected.step;
    if (weights || stash) expected.updates += updates;
    if (contents_[i] != expected) return SlotId(static_cast<std::int32_t>(i));
  }
  return std::nullopt;
}

}  // namespace takt::sim
