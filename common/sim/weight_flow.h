// SPDX-License-Identifier: Apache-2.0
// What happens to weights in a program whose replicas share the optimizer's state: OPT updates a
// shard of each layer, and the replicas make the weights whole again, once a step or by stage.
#pragma once

#include <string>
#include <vector>

#include "common/program/program.h"
#include "common/sim/slot_contents.h"

namespace takt::sim {

// Borrows the program.
class WeightFlow {
 public:
  explicit WeightFlow(const program::Program& program);

  // Applies a GATHER_WEIGHTS, UNSHARD or RESHARD to the slots. Returns what is wrong with it, "" if
  // nothing is.
  std::string Step(const program::Instruction& instruction, SlotContents& contents) const;

  // Returns whether the rank frees weights.
  bool frees() const { return frees_; }

  // Returns what is wrong with an OPT if the rank frees weights, "" if nothing is.
  std::string CheckUpdate(const program::Instruction& optimizer,
                          const SlotContents& contents) const;

 private:
  std::string Unshard(const program::Instruction& unshard, SlotContents& contents) const;
  std::string Reshard(const program::Instruction& reshard, SlotContents& contents) const;
  // Returns all slots of this kind, or those of one stage.
  std::vector<SlotId> SlotsOf(program::SlotKind kind) const;
  std::vector<SlotId> SlotsOf(program::SlotKind kind, StageId stage) const;

  const program::Program& program_;
  const bool frees_;
};

}  // namespace takt::sim
