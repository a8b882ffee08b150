// SPDX-License-Identifier: Apache-2.0
// Counts the bytes that a rank needs to run its program, beside weights, gradients and optimizer
// state.
#pragma once

#include <cstdint>

#include "common/base/memory_kind.h"
#include "common/program/program.h"

namespace takt::program {

// Counts all slots, because they are there for the whole run. A pool has as many as are ever in use
// at once.
struct SlotBytes {
  std::int64_t stash = 0;    // kStash, kRecomputed, kVocabularyStash
  std::int64_t buffers = 0;  // activations and gradients between stages
  std::int64_t total = 0;    // of both; the largest number where the sum would be larger
};

// Returns the kind of memory that a slot counts as.
MemoryKind MemoryKindOf(SlotKind kind);

// Slots without a size count nothing.
SlotBytes CountSlotBytes(const Program& program);

}  // namespace takt::program
