// SPDX-License-Identifier: Apache-2.0
// Finding an instruction's slots by what they hold, so that nothing here depends on their order in the list.
#pragma once

#include <span>

#include "common/base/status.h"
#include "common/program/program.h"

namespace takt::train {

// The first slot of `kind` among `slots`, or nullptr.
inline const SlotId* FindSlot(const program::Program& program, std::span<const SlotId> slots, program::SlotKind kind) {
  for (const SlotId& slot : slots) {
    if (program.slots[slot.value()].kind == kind) return &slot;
  }
  return nullptr;
}

// As FindSlot, for a slot that the lowering always gives.
inline SlotId GetSlot(const program::Program& program, std::span<const SlotId> slots, program::SlotKind kind) {
  const SlotId* slot = FindSlot(program, slots, kind);
  TAKT_CHECK(slot != nullptr);
  return *slot;
}

}  // namespace takt::train
