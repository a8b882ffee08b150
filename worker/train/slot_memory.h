// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/id.h"
#include "common/layout/tensor.h"
#include "worker/backend/backend.h"
#include "worker/train/section_memory.h"
#include "worker/train/stash_view.h"

namespace takt::train {

// The memory of a program's slots, allocated once. Slots without bytes of their own (gradients,
// weights, scalars) are empty. Addresses stay the same for its life. The program orders the lanes
// that use it.
class SlotMemory {
 public:
  // slots: as layout::LayOutSlots makes it of a program with `num_slots` slots. backend: borrowed
  // for the object's life.
  static absl::StatusOr<SlotMemory> Create(const layout::Section& slots, std::size_t num_slots,
                                           backend::Backend& backend);

  // Returns the memory of a slot that holds several tensors. It is empty for SlotId(-1), which
  // FindSlot returns for a slot that does not exist.
  SlotRoom Room(SlotId slot) const { return slot.value() < 0 ? SlotRoom() : rooms_[slot.value()]; }
  // Returns the memory of a slot that holds one thing.
  std::span<std::byte> Bytes(SlotId slot) const {
    const std::int64_t bytes = bytes_[slot.value()];
    return {Room(slot).At(0, bytes), static_cast<std::size_t>(bytes)};
  }
  // Returns null for SlotId(-1).
  float* Floats(SlotId slot) const {
    return slot.value() < 0 ? nullptr : reinterpret_cast<float*>(Bytes(slot).data());
  }

 private:
  SectionMemory memory_;
  std::vector<SlotRoom> rooms_;      // by slot
  std::vector<std::int64_t> bytes_;  // by slot
};

}  // namespace takt::train
