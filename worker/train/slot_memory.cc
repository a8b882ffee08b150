// SPDX-License-Identifier: Apache-2.0
#include "worker/train/slot_memory.h"

#include <map>
#include <utility>

#include "common/base/status.h"
#include "common/program/slot_bytes.h"

namespace takt::train {
namespace {

using program::SlotKind;

// Else slots of one piece would not all be aligned as those that have their own.
constexpr std::int64_t kLineBytes = 64;

bool IsReadByWeightGrad(SlotKind kind) {
  return kind == SlotKind::kStash || kind == SlotKind::kRecomputed || kind == SlotKind::kOutputGrad;
}

}  // namespace

absl::StatusOr<SlotMemory> SlotMemory::Create(
    const program::Program& program, backend::Backend& backend,
    const std::function<std::int64_t(const program::Slot&)>& bytes_of) {
  const bool shares = program::MergesWeightGrads(program);
  SlotMemory memory;
  memory.rooms_.resize(program.slots.size());
  std::vector<std::vector<std::size_t>> pieces;  // slots that share memory
  std::map<std::pair<SlotKind, StageId>, std::size_t> shared;
  for (std::size_t i = 0; i < program.slots.size(); ++i) {
    const program::Slot& slot = program.slots[i];
    const std::int64_t bytes = memory.bytes_.emplace_back(bytes_of(slot));
    std::size_t piece = pieces.size();
    if (shares && IsReadByWeightGrad(slot.kind) && bytes % kLineBytes == 0)
      piece = shared.try_emplace({slot.kind, slot.stage}, piece).first->second;
    if (piece == pieces.size()) pieces.emplace_back();
    pieces[piece].push_back(i);
  }
  for (const std::vector<std::size_t>& piece : pieces) {
    const auto count = static_cast<std::int64_t>(piece.size());
    const std::int64_t bytes = count * memory.bytes_[piece.front()];
    if (bytes == 0) continue;
    ASSIGN_OR_RETURN(backend::Buffer buffer,
                     backend.Allocate(static_cast<std::size_t>(bytes),
                                      program::MemoryKindOf(program.slots[piece.front()].kind)));
    for (std::int64_t i = 0; i < count; ++i)
      memory.rooms_[piece[static_cast<std::size_t>(i)]] = {buffer.data(), count, i};
    memory.buffers_.push_back(std::move(buffer));
  }
  return memory;
}

}  // namespace takt::train
