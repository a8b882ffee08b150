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

namespace takt::train {

// The memory of a program's slots, allocated once. Slots without bytes of their own (gradients,
// weights, scalars) are empty. Stable for its life; the program orders who touches what.
class SlotMemory {
 public:
  // bytes_of: how much a slot needs here; 0: nothing.  backend: borrowed for its life.
  static absl::StatusOr<SlotMemory> Create(
      const program::Program& program, backend::Backend& backend,
      const std::function<std::int64_t(const program::Slot&)>& bytes_of);

  std::span<std::byte> Bytes(SlotId slot) const {
    return {buffers_[slot.value()].data(), buffers_[slot.value()].bytes()};
  }
  // Null for SlotId(-1), which FindSlot gives for a slot that is not there.
  std::byte* Data(SlotId slot) const {
    return slot.value() < 0 ? nullptr : buffers_[slot.value()].data();
  }
  float* Floats(SlotId slot) const { return reinterpret_cast<float*>(Data(slot)); }

 private:
  std::vector<backend::Buffer> buffers_;
};

}  // namespace takt::train
