// SPDX-License-Identifier: Apache-2.0
// Follows what the slots of one rank's program hold while its lists are read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <vector>

#include "common/base/id.h"
#include "common/program/program.h"

namespace takt::sim {

enum class What : std::uint8_t {
  kNothing,
  kTokens,
  kActivation,    // output of `stage`
  kGradient,      // gradient of the input of `stage`
  kForwardStash,  // left by F of `stage`
  kStash,         // left by I of `stage`
  kRecomputed,    // by I of `stage`
  kWeights,
  kPartialSums,  // losses and norms of this rank
  kSums,         // those of all ranks
  kHeadInput,    // the final norm's output
  kParts,        // of the softmax, of this rank's blocks
  kAllParts,     // those of all ranks
  kPartialGrad,  // of the final norm's output, from this rank's blocks
  kHeadGrad,     // the sum of those of all ranks
  kShards,       // of weights; or whole weights of which each rank has updated its shard alone
};

struct Content {
  What what = What::kNothing;
  StageId stage{-1};
  MicrobatchId microbatch{-1};
  int step = 0;
  int updates = 0;  // that made the weights, or those that the stash was made with

  bool operator==(const Content&) const = default;
};

// Borrows the program.
class SlotContents {
 public:
  // Only the newest weights are there at first, or shards of them where a rank frees weights.
  explicit SlotContents(const program::Program& program);

  void Set(SlotId slot, const Content& content) { contents_[slot.value()] = content; }

  const Content& At(SlotId slot) const { return contents_[slot.value()]; }
  // Returns whether the slot is one (not -1) and holds that, whatever updates it was made with.
  bool Holds(SlotId slot, const Content& content) const {
    if (slot.value() < 0) return false;
    const Content& found = At(slot);
    return found.what == content.what && found.stage == content.stage &&
           found.microbatch == content.microbatch && found.step == content.step;
  }
  // Returns how many updates made the weights among `slots`; -1: they differ in that, or there are
  // none.
  int UpdatesOfWeights(std::span<const SlotId> slots) const;

  // Returns whether the slots of this kind in `list` are `all`, in order.
  bool AreAll(std::span<const SlotId> all, program::SlotKind kind,
              std::span<const SlotId> list) const;
  // Returns whether the scalars in `list` have these indices, in order.
  bool AreScalars(std::span<const SlotId> list, std::initializer_list<int> indices) const;

  // Returns the first slot that does not hold what it did `before`, one step and `updates` updates
  // later.
  std::optional<SlotId> FirstNotOneStepAfter(const SlotContents& before, int updates) const;

 private:
  const program::Program& program_;
  std::vector<Content> contents_;  // by slot
};

}  // namespace takt::sim
