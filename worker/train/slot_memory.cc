// SPDX-License-Identifier: Apache-2.0
#include "worker/train/slot_memory.h"

#include <utility>

#include "common/base/status.h"
#include "common/program/slot_bytes.h"

namespace takt::train {

absl::StatusOr<SlotMemory> SlotMemory::Create(
    const program::Program& program, backend::Backend& backend,
    const std::function<std::int64_t(const program::Slot&)>& bytes_of) {
  SlotMemory memory;
  memory.buffers_.reserve(program.slots.size());
  for (const program::Slot& slot : program.slots) {
    backend::Buffer& buffer = memory.buffers_.emplace_back();
    const std::int64_t bytes = bytes_of(slot);
    if (bytes > 0) {
      ASSIGN_OR_RETURN(buffer, backend.Allocate(static_cast<std::size_t>(bytes),
                                                program::MemoryKindOf(slot.kind)));
    }
  }
  return memory;
}

}  // namespace takt::train
