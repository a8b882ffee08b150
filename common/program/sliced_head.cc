// SPDX-License-Identifier: Apache-2.0
#include "common/program/sliced_head.h"

#include <vector>

namespace takt::program {

bool BackwardFollowsForward(const Program& program, StageId stage) {
  bool any = false;
  for (const std::vector<Instruction>* const list :
       {&program.prologue, &program.body, &program.epilogue}) {
    const Instruction* forward = nullptr;  // the stage's F, if it is the lane's last instruction
    for (const Instruction& next : *list) {
      if (program.lanes[next.lane.value()].kind != LaneKind::kCompute) continue;
      const bool here = next.stage == stage;
      const bool in_pair = next.op == Op::kOverlap && (here || next.backward_stage == stage);
      const bool backward = here && next.op == Op::kBackward;
      const bool follows = forward != nullptr && next.microbatch == forward->microbatch &&
                           next.step_ahead == forward->step_ahead;
      if (in_pair || (forward != nullptr && !backward) || (backward && !follows)) return false;
      forward = here && next.op == Op::kForward ? &next : nullptr;
      any |= forward != nullptr;
    }
    if (forward != nullptr) return false;
  }
  return any;
}

bool SlicesHead(const model::Model& model, const Program& program) {
  if (model.head_slice_rows() == model.rows() || model.tensor.splits()) return false;
  if (SpreadsVocabulary(program)) return false;
  return BackwardFollowsForward(program, StageId(program.num_stages - 1));
}

}  // namespace takt::program
