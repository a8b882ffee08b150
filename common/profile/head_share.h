// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "common/base/id.h"
#include "common/mesh/mesh.h"
#include "common/model/model.h"
#include "common/program/program.h"
#include "common/program/sliced_head.h"

namespace takt::profile {

// Says which part of a rank's instructions is the head's F. Where the head is sliced, B computes it
// (program::SlicesHead), and profiles count it as F nevertheless: what a layer takes does not
// depend on the schedule.
class HeadShare {
 public:
  HeadShare(const model::Model& model, const mesh::Partition& partition,
            const program::Program& program)
      : stage_(partition.back().id) {
    if (!program::SlicesHead(model, program)) return;
    const double forward = model.layers.back().cost.forward_flops;
    double all = forward;
    for (LayerId id = partition.back().first_layer; id < partition.back().last_layer; ++id) {
      const model::LayerCost& cost = model.layers[id.value()].cost;
      all += cost.InputGradFlops(partition.back().recompute) + cost.weight_grad_flops;
    }
    of_backward_ = forward / all;
  }

  // Returns the share of the instruction's time, by the work of what it computes.
  double In(const program::Instruction& instruction) const {
    const bool has_it = instruction.op == program::Op::kBackward && instruction.stage == stage_;
    return has_it ? of_backward_ : 0;
  }

 private:
  const StageId stage_;
  double of_backward_ = 0;
};

}  // namespace takt::profile
