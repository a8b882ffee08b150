// SPDX-License-Identifier: Apache-2.0
// The slots of a program under construction: fixed ones, pools that grow as they are needed, rings
// of two.
#pragma once

#include <array>
#include <map>
#include <tuple>
#include <vector>

#include "common/program/program.h"

namespace takt::program {

class SlotTable {
 public:
  explicit SlotTable(std::vector<Slot>& slots) : slots_(slots) {}

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
    const SlotId slot = pool.free.back();
    pool.free.pop_back();
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
    std::vector<SlotId> free;
  };
  struct Ring {
    int uses = 0;
    std::array<SlotId, 2> slots;
  };

  SlotId Add(Slot slot) {
    slots_.push_back(slot);
    return SlotId(static_cast<std::int32_t>(slots_.size()) - 1);
  }

  std::vector<Slot>& slots_;
  std::map<std::tuple<SlotKind, StageId, std::int32_t, std::int32_t>, SlotId> fixed_;
  std::map<std::pair<SlotKind, StageId>, Pool> pools_;
  std::map<std::pair<SlotKind, StageId>, Ring> rings_;
};

}  // namespace takt::program
