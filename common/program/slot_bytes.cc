// SPDX-License-Identifier: Apache-2.0
#include "common/program/slot_bytes.h"

#include <limits>

namespace takt::program {
namespace {

// Sizes may come from the wire.
std::int64_t AddSaturating(std::int64_t a, std::int64_t b) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  return a > kMost - b ? kMost : a + b;
}

}  // namespace

SlotBytes CountSlotBytes(const Program& program) {
  SlotBytes bytes;
  for (const Slot& slot : program.slots) {
    switch (slot.kind) {
      case SlotKind::kStash:
      case SlotKind::kRecomputed:
        bytes.stash = AddSaturating(bytes.stash, slot.bytes);
        break;
      case SlotKind::kInput:
      case SlotKind::kOutput:
      case SlotKind::kOutputGrad:
      case SlotKind::kInputGrad:
        bytes.buffers = AddSaturating(bytes.buffers, slot.bytes);
        break;
      default:
        break;
    }
  }
  bytes.total = AddSaturating(bytes.stash, bytes.buffers);
  return bytes;
}

}  // namespace takt::program
