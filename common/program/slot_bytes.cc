// SPDX-License-Identifier: Apache-2.0
#include "common/program/slot_bytes.h"

#include <limits>

namespace takt::program {
namespace {

// Sizes may come from the wire, so a sum may be too large.
std::int64_t AddSaturating(std::int64_t a, std::int64_t b) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  return a > kMost - b ? kMost : a + b;
}

}  // namespace

MemoryKind MemoryKindOf(SlotKind kind) {
  switch (kind) {
    case SlotKind::kStash:
    case SlotKind::kRecomputed:
    case SlotKind::kVocabularyStash:
      return MemoryKind::kStash;
    case SlotKind::kInput:
    case SlotKind::kOutput:
    case SlotKind::kOutputGrad:
    case SlotKind::kInputGrad:
    case SlotKind::kHeadInput:
    case SlotKind::kPartialGrad:
    case SlotKind::kHeadGrad:
      return MemoryKind::kMessages;
    case SlotKind::kTokens:
      return MemoryKind::kTokens;
    case SlotKind::kGradient:
      return MemoryKind::kGradients;
    case SlotKind::kWeights:
    case SlotKind::kShard:
      return MemoryKind::kWeights;
    case SlotKind::kScalars:
      return MemoryKind::kProcess;
  }
  return MemoryKind::kProcess;
}

SlotBytes CountSlotBytes(const Program& program) {
  SlotBytes bytes;
  for (const Slot& slot : program.slots) {
    const MemoryKind kind = MemoryKindOf(slot.kind);
    if (kind == MemoryKind::kStash) bytes.stash = AddSaturating(bytes.stash, slot.bytes);
    if (kind == MemoryKind::kMessages) bytes.buffers = AddSaturating(bytes.buffers, slot.bytes);
  }
  bytes.total = AddSaturating(bytes.stash, bytes.buffers);
  return bytes;
}

}  // namespace takt::program
