// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/status.h"
#include "common/model/stash.h"
#include "worker/backend/ops.h"

namespace takt::train {

// Room for what is laid out once, in one of several like slots. They share memory tensor by tensor:
// the first tensor of every slot, then the second of every slot. So that of neighbouring slots lies
// in one piece. A slot by itself holds its tensors as they are laid out.
struct SlotRoom {
  SlotRoom() = default;
  SlotRoom(std::byte* memory) : base(memory) {}  // NOLINT(google-explicit-constructor)
  SlotRoom(std::byte* memory, std::int64_t num_slots, std::int64_t slot_index)
      : base(memory), slots(num_slots), slot(slot_index) {}

  // offset, room: of a tensor in the layout, in bytes; room reaches to the next one.
  std::byte* At(std::int64_t offset, std::int64_t room) const {
    return base + offset * slots + slot * room;
  }
  // Of a part of the layout.
  SlotRoom From(std::int64_t offset) const { return {base + offset * slots, slots, slot}; }

  std::byte* base = nullptr;  // null: there is none
  std::int64_t slots = 1, slot = 0;
  bool operator==(const SlotRoom&) const = default;
};

// The memory of one layer's stash of one microbatch, in two parts.
struct StashMemory {
  SlotRoom kept;
  SlotRoom recomputed;  // F: scratch; I and W: the same memory for both
};

// Of a tensor that is in bf16 or in f32.
inline backend::Output TensorAt(std::byte* place, bool bf16) {
  if (bf16) return reinterpret_cast<backend::Bf16*>(place);
  return reinterpret_cast<float*>(place);
}

// The same from element `offset` on.
inline backend::Output From(const backend::Output& tensor, std::int64_t offset) {
  if (tensor.bf16 != nullptr) return tensor.bf16 + offset;
  return tensor.f32 + offset;
}

// The tensors in it. Borrows the layout.
class StashView {
 public:
  StashView(const model::StashLayout& layout, const StashMemory& memory)
      : layout_(layout), memory_(memory) {}

  // Of one that is in f32 in all models.
  float* operator[](std::size_t tensor) const {
    TAKT_CHECK(!layout_[tensor].bf16);
    return reinterpret_cast<float*>(Bytes(tensor));
  }

  // Of one that is in the model's precision of products or activations.
  backend::Output Tensor(std::size_t tensor) const {
    return TensorAt(Bytes(tensor), layout_[tensor].bf16);
  }

 private:
  std::byte* Bytes(std::size_t tensor) const {
    const model::StashLayout::Place& place = layout_[tensor];
    return (place.kept ? memory_.kept : memory_.recomputed).At(place.offset, place.room);
  }

  const model::StashLayout& layout_;
  const StashMemory memory_;
};

}  // namespace takt::train
