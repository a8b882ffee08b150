// SPDX-License-Identifier: Apache-2.0
#include "worker/train/slot_memory.h"

namespace takt::train {

absl::StatusOr<SlotMemory> SlotMemory::Create(const layout::Section& slots, std::size_t num_slots,
                                              backend::Backend& backend) {
  SlotMemory memory;
  ASSIGN_OR_RETURN(memory.memory_, SectionMemory::Create(slots, backend));
  memory.rooms_.resize(num_slots);
  memory.bytes_.resize(num_slots);
  for (const layout::Tensor& tensor : slots.tensors) {
    const auto slot = static_cast<std::size_t>(tensor.slot.value());
    memory.rooms_[slot] = {memory.memory_.At(tensor), tensor.interleave};
    memory.bytes_[slot] = tensor.bytes;
  }
  return memory;
}

}  // namespace takt::train
