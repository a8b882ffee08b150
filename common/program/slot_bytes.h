// SPDX-License-Identifier: Apache-2.0
// What a rank needs to run its program, beside weights, gradients and optimizer state.
#pragma once

#include <cstdint>

#include "common/base/memory_kind.h"
#include "common/program/program.h"

namespace takt::program {

// All slots together, as they are there for the whole run: of the pools, as many as are ever in use
// at once.
struct SlotBytes {
  std::int64_t stash = 0;    // kStash, kRecomputed
  std::int64_t buffers = 0;  // activations and gradients between stages
  std::int64_t total = 0;    // of both; at most the largest number
};

// What the memory of a slot counts as.
MemoryKind MemoryKindOf(SlotKind kind);

// Slots that are not sized count nothing.
SlotBytes CountSlotBytes(const Program& program);

}  // namespace takt::program
