// SPDX-License-Identifier: Apache-2.0
// The slots of a program under construction: fixed ones, pools that grow as they are needed or are
// used in turn, rings of two.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "common/program/program.h"

namespace takt::program {

class SlotTable {
 public:
  // sized: slots among which are those of all pools, which then have this size from the start and
  // are used in turn; empty: pools grow.
  explicit SlotTable(std::vector<Slot>& slots, std::span<const Slot> sized = {})
      : slots_(slots), in_turn_(!sized.empty()) {
    for (const Slot& slot : sized) {
      if (!IsPooled(slot.kind)) continue;
      Pool& pool = pools_[{slot.kind, slot.stage}];
      pool.free.push_back(Add({slot.kind, slot.stage, pool.size++, slot.bytes}));
    }
  }

  // The one slot of this kind, stage, index and version; made when first asked for.
  SlotId Fixed(SlotKind kind, StageId stage, std::int32_t index, std::int32_t version = 0) {
    const auto [entry, is_new] = fixed_.try_emplace({kind, stage, index, version});
    if (is_new) entry->second = Add({kind, stage, index, 0, version});
    return entry->second;
  }

  // A free slot of a pool; the pool grows if there is none.
  SlotId Acquire(SlotKind kind, StageId stage, std::int64_t bytes) {
    Pool& pool = pools_[{kind, stage}];
    if (pool.free.empty()) return Add({kind, stage, pool.size++, bytes});
    const SlotId slot = in_turn_ ? pool.free.front() : pool.free.back();
    in_turn_ ? pool.free.pop_front() : pool.free.pop_back();
    return slot;
  }

  void Release(SlotId id) {
    const Slot& slot = slots_[id.value()];
    pools_[{slot.kind, slot.stage}].free.push_back(id);
  }

  // Two slots in turn: one may still be on its way while the next is being filled.
  SlotId Alternate(SlotKind kind, StageId stage, std::int64_t bytes) {
    Ring& ring = rings_[{kind, stage}];
    const int turn = ring.uses++ % 2;
    if (ring.uses <= 2) ring.slots[turn] = Add({kind, stage, turn, bytes});
    return ring.slots[turn];
  }

 private:
  struct Pool {
    std::int32_t size = 0;
    std::deque<SlotId> free;
  };
  struct Ring {
    int uses = 0;
    std::array<SlotId, 2> slots;
  };

  static bool IsPooled(SlotKind kind) {
    return kind == SlotKind::kInput || kind == SlotKind::kStash || kind == SlotKind::kOutputGrad ||
           kind == SlotKind::kRecomputed;
  }

  SlotId Add(Slot slot) {
    slots_.push_back(slot);
    return SlotId(static_cast<std::int32_t>(slots_.size()) - 1);
  }

  std::vector<Slot>& slots_;
  const bool in_turn_;
  std::map<std::tuple<SlotKind, StageId, std::int32_t, std::int32_t>, SlotId> fixed_;
  std::map<std::pair<SlotKind, StageId>, Pool> pools_;
  std::map<std::pair<SlotKind, StageId>, Ring> rings_;
};

}  // namespace takt::program
