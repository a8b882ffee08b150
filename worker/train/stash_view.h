// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "common/model/stash.h"

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

  float* operator[](std::size_t tensor) const {
    const model::StashLayout::Place& place = layout_[tensor];
    return reinterpret_cast<float*>((place.kept ? memory_.kept : memory_.recomputed) +
                                    place.offset);
  }

 private:
  const model::StashLayout& layout_;
  const StashMemory memory_;
};

}  // namespace takt::train
