// SPDX-License-Identifier: Apache-2.0
// The slots of weights and gradients that one rank's program has, by stage.
#pragma once

#include <limits>
#include <map>
#include <vector>

#include "common/base/id.h"
#include "common/program/program.h"

namespace takt::sim {

// Rows of a spread vocabulary have the stage after the last one. Slots are in the program's order.
class LayerSlots {
 public:
  struct Stage {
    std::map<int, std::vector<SlotId>> weights;  // by version
    std::vector<SlotId> gradients;
    bool recomputes = false;  // from I to W; a B needs no slot for it
  };
  // These are the slots that one SPECULATE touches.
  struct Foreseen {
    std::vector<SlotId> gradients, weights, foreseen;
  };

  explicit LayerSlots(const program::Program& program);

  // Precondition: the rank has the stage.
  const Stage& Of(StageId stage) const { return stages_.at(stage); }
  const std::vector<SlotId>& gradients() const { return gradients_; }
  // Returns the weights of these versions, by stage, version and layer.
  std::vector<SlotId> Weights(int first, int last = std::numeric_limits<int>::max()) const;
  // Returns what is foreseen of all stages, or of the rows of the embedding.
  Foreseen ForeseenOf(bool rows) const;
  // Returns whether that is the stage of rows.
  bool IsOfRows(StageId stage) const { return stage.value() == num_stages_; }

 private:
  const int num_stages_;
  std::map<StageId, Stage> stages_;
  std::vector<SlotId> gradients_;  // of all stages
};

}  // namespace takt::sim
