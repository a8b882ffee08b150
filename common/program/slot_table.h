// SPDX-License-Identifier: Apache-2.0
// The slots of a program under construction.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "common/program/program.h"

namespace takt::program {

// A pool hands out its slots to microbatches in one of these ways.
enum class SlotReuse : std::uint8_t {
  kAnyFree = 1,  // the one that was released last; the pool grows where none is free
  kInTurn = 2,   // the one that was released first
  // Always the same one, because a slot that is filled in one step is found by the next. Each step
  // is cut into runs of at least as many microbatches as the pool has slots, and a microbatch takes
  // the slot of its place in its run. So no slot comes again before as many others have passed.
  kByMicrobatch = 3,
};

// Returns how many slots the largest pool among `slots` has.
int LargestPool(std::span<const Slot> slots);

struct SlotTableOptions {
  SlotReuse reuse = SlotReuse::kAnyFree;
  // For all but kAnyFree: slots among which are those of all pools, which have this size.
  std::span<const Slot> sized;
  int num_microbatches = 1;  // of a step; microbatches beyond are those of the next ones
};

class SlotTable {
 public:
  SlotTable(std::vector<Slot>& slots, const SlotTableOptions& options);

  // The one slot of this kind, stage, index and version. It is made when it is first asked for.
  SlotId Fixed(SlotKind kind, StageId stage, std::int32_t index, std::int32_t version = 0,
               std::int64_t bytes = 0);

  // A slot of a pool, for one microbatch.
  SlotId Acquire(SlotKind kind, StageId stage, int microbatch, std::int64_t bytes);
  void Release(SlotId id);

  // Two slots in turn: one may still be on its way while the next is being filled.
  SlotId Alternate(SlotKind kind, StageId stage, int microbatch, std::int64_t bytes);

 private:
  struct Pool {
    std::int32_t size = 0;
    std::deque<SlotId> free;
  };
  struct Ring {
    int uses = 0;
    std::array<SlotId, 2> slots;
  };

  std::int32_t PlaceInRun(int microbatch, int num_slots) const;
  SlotId Add(Slot slot);

  std::vector<Slot>& slots_;
  const SlotReuse reuse_;
  const int num_microbatches_;
  std::map<std::tuple<SlotKind, StageId, std::int32_t, std::int32_t>, SlotId> fixed_;
  std::map<std::pair<SlotKind, StageId>, Pool> pools_;
  std::map<std::pair<SlotKind, StageId>, Ring> rings_;
};

}  // namespace takt::program
