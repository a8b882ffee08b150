// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "common/base/status.h"
#include "common/model/stash.h"
#include "worker/backend/ops.h"

namespace takt::train {

// The memory of one layer's stash of one microbatch, in two parts.
struct StashMemory {
  std::byte* kept = nullptr;
  std::byte* recomputed = nullptr;  // F: scratch; I and W: the same memory for both
};

// The tensors in it. Borrows the layout.
class StashView {
 public:
  StashView(const model::StashLayout& layout, const StashMemory& memory)
      : layout_(layout), memory_(memory) {}

  // Of one in f32.
  float* operator[](std::size_t tensor) const {
    TAKT_CHECK(!layout_[tensor].bf16);
    return reinterpret_cast<float*>(Bytes(tensor));
  }

  // Of one that only products read, in the precision of the model.
  backend::Output Factor(std::size_t tensor) const {
    if (layout_[tensor].bf16) return reinterpret_cast<backend::Bf16*>(Bytes(tensor));
    return reinterpret_cast<float*>(Bytes(tensor));
  }

 private:
  std::byte* Bytes(std::size_t tensor) const {
    const model::StashLayout::Place& place = layout_[tensor];
    return (place.kept ? memory_.kept : memory_.recomputed) + place.offset;
  }

  const model::StashLayout& layout_;
  const StashMemory memory_;
};

}  // namespace takt::train
