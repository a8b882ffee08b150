// SPDX-License-Identifier: Apache-2.0
#include "common/program/slot_table.h"

#include <algorithm>

namespace takt::program {
namespace {

bool IsPooled(SlotKind kind) {
  return kind == SlotKind::kInput || kind == SlotKind::kStash || kind == SlotKind::kOutputGrad ||
         kind == SlotKind::kRecomputed || kind == SlotKind::kHeadInput ||
         kind == SlotKind::kVocabularyStash || kind == SlotKind::kPartialGrad ||
         kind == SlotKind::kHeadGrad;
}

}  // namespace

int LargestPool(std::span<const Slot> slots) {
  int largest = 0;
  for (const Slot& slot : slots) {
    if (IsPooled(slot.kind)) largest = std::max(largest, slot.index + 1);
  }
  return largest;
}

SlotTable::SlotTable(std::vector<Slot>& slots, const SlotTableOptions& options)
    : slots_(slots), reuse_(options.reuse), num_microbatches_(options.num_microbatches) {
  for (const Slot& slot : options.sized) {
    if (!IsPooled(slot.kind)) continue;
    Pool& pool = pools_[{slot.kind, slot.stage}];
    const std::int32_t index = pool.size++;
    if (reuse_ == SlotReuse::kInTurn) {
      pool.free.push_back(Add({slot.kind, slot.stage, index, slot.bytes}));
    }
  }
}

SlotId SlotTable::Fixed(SlotKind kind, StageId stage, std::int32_t index, std::int32_t version,
                        std::int64_t bytes) {
  const auto [entry, is_new] = fixed_.try_emplace({kind, stage, index, version});
  if (is_new) entry->second = Add({kind, stage, index, bytes, version});
  return entry->second;
}

SlotId SlotTable::Acquire(SlotKind kind, StageId stage, int microbatch, std::int64_t bytes) {
  Pool& pool = pools_[{kind, stage}];
  if (reuse_ == SlotReuse::kByMicrobatch) {
    return Fixed(kind, stage, PlaceInRun(microbatch, pool.size), /*version=*/0, bytes);
  }
  if (pool.free.empty()) return Add({kind, stage, pool.size++, bytes});
  const bool in_turn = reuse_ == SlotReuse::kInTurn;
  const SlotId slot = in_turn ? pool.free.front() : pool.free.back();
  in_turn ? pool.free.pop_front() : pool.free.pop_back();
  return slot;
}

void SlotTable::Release(SlotId id) {
  const Slot& slot = slots_[id.value()];
  if (reuse_ != SlotReuse::kByMicrobatch) pools_[{slot.kind, slot.stage}].free.push_back(id);
}

SlotId SlotTable::Alternate(SlotKind kind, StageId stage, int microbatch, std::int64_t bytes) {
  if (reuse_ == SlotReuse::kByMicrobatch) {
    return Fixed(kind, stage, PlaceInRun(microbatch, 2), /*version=*/0, bytes);
  }
  Ring& ring = rings_[{kind, stage}];
  const int turn = ring.uses++ % 2;
  if (ring.uses <= 2) ring.slots[turn] = Add({kind, stage, turn, bytes});
  return ring.slots[turn];
}

std::int32_t SlotTable::PlaceInRun(int microbatch, int num_slots) const {
  const int m = microbatch % num_microbatches_;
  const int runs = std::max(1, num_microbatches_ / num_slots);
  const int length = num_microbatches_ / runs;
  const int num_longer = num_microbatches_ % runs;  // these come first and have one more
  const int in_longer = num_longer * (length + 1);
  return m < in_longer ? m % (length + 1) : (m - in_longer) % length;
}

SlotId SlotTable::Add(Slot slot) {
  slots_.push_back(slot);
  return SlotId(static_cast<std::int32_t>(slots_.size()) - 1);
}

}  // namespace takt::program
