// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/status.h"
#include "common/layout/stash_layout.h"
#include "common/layout/tensor.h"
#include "worker/backend/ops.h"

namespace takt::train {

// The memory of several tensors that were laid out once, in one of several equal rooms.
struct SlotRoom {
  SlotRoom() = default;
  SlotRoom(std::byte* memory) : base(memory) {}  // NOLINT(google-explicit-constructor)
  SlotRoom(std::byte* memory, layout::Interleave room) : base(memory), interleave(room) {}

  // offset, room: those of a tensor in the layout, in bytes; `room` reaches to the next tensor.
  std::byte* At(std::int64_t offset, std::int64_t room) const {
    return base + interleave.At(offset, room);
  }
  // Returns the room of a part of the layout.
  SlotRoom From(std::int64_t offset) const { return {base + interleave.At(offset, 0), interleave}; }

  std::byte* base = nullptr;  // of all rooms; null: there is no memory
  layout::Interleave interleave;
  bool operator==(const SlotRoom&) const = default;
};

// The memory of one layer's stash of one microbatch, in two parts.
struct StashMemory {
  SlotRoom kept;
  SlotRoom recomputed;  // F: scratch; I and W: one memory for both
};

// Returns the tensor at `place`, which is in bf16 or in f32.
inline backend::Output TensorAt(std::byte* place, bool bf16) {
  if (bf16) return reinterpret_cast<backend::Bf16*>(place);
  return reinterpret_cast<float*>(place);
}

// Returns the same tensor from element `offset` on.
inline backend::Output From(const backend::Output& tensor, std::int64_t offset) {
  if (tensor.bf16 != nullptr) return tensor.bf16 + offset;
  return tensor.f32 + offset;
}

inline backend::Operand From(const backend::Operand& tensor, std::int64_t offset) {
  if (tensor.bf16 != nullptr) return tensor.bf16 + offset;
  return tensor.f32 + offset;
}

// The tensors of a stash. Borrows the layout.
class StashView {
 public:
  StashView(const layout::StashLayout& layout, const StashMemory& memory)
      : layout_(layout), memory_(memory) {}

  // Returns a tensor that is in f32.
  float* operator[](std::size_t tensor) const {
    TAKT_CHECK(!layout_[tensor].bf16);
    return reinterpret_cast<float*>(Bytes(tensor));
  }

  // Returns a tensor that is in f32 or in bf16.
  backend::Output Tensor(std::size_t tensor) const {
    return TensorAt(Bytes(tensor), layout_[tensor].bf16);
  }

 private:
  std::byte* Bytes(std::size_t tensor) const {
    const layout::StashLayout::Place& place = layout_[tensor];
    return (place.kept ? memory_.kept : memory_.recomputed).At(place.offset, place.room);
  }

  const layout::StashLayout& layout_;
  const StashMemory memory_;
};

}  // namespace takt::train
