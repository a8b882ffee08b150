// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/program/program.h"
#include "worker/backend/backend.h"
#include "worker/train/stash_view.h"

namespace takt::train {

// The memory of a program's slots, allocated once. Slots without bytes of their own (gradients,
// weights, scalars) are empty. Each slot has memory of its own; in a program whose W are of several
// microbatches, the slots of one kind and stage that W reads share it (SlotRoom), so that what it
// multiplies lies together. Stable for its life; the program orders who touches what.
class SlotMemory {
 public:
  // bytes_of: how much a slot needs here, the same for all of one kind and stage; 0: nothing.
  // backend: borrowed for its life.
  static absl::StatusOr<SlotMemory> Create(
      const program::Program& program, backend::Backend& backend,
      const std::function<std::int64_t(const program::Slot&)>& bytes_of);

  // Of a slot that holds several tensors. Empty for SlotId(-1), which FindSlot gives for a slot
  // that is not there.
  SlotRoom Room(SlotId slot) const { return slot.value() < 0 ? SlotRoom() : rooms_[slot.value()]; }
  // Of a slot that holds one thing.
  std::span<std::byte> Bytes(SlotId slot) const {
    const std::int64_t bytes = bytes_[slot.value()];
    return {Room(slot).At(0, bytes), static_cast<std::size_t>(bytes)};
  }
  // Null for SlotId(-1).
  float* Floats(SlotId slot) const {
    return slot.value() < 0 ? nullptr : reinterpret_cast<float*>(Bytes(slot).data());
  }

 private:
  std::vector<backend::Buffer> buffers_;
  std::vector<SlotRoom> rooms_;      // by slot
  std::vector<std::int64_t> bytes_;  // by slot
};

}  // namespace takt::train
