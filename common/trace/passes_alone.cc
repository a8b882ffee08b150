// SPDX-License-Identifier: Apache-2.0
#include "common/trace/passes_alone.h"

namespace takt::trace {

using program::Op;

void PassesAlone::Add(const program::Instruction& instruction, double seconds) {
  const Op op = instruction.op;
  if (op != Op::kForward && op != Op::kInputGrad && op != Op::kWeightGrad && op != Op::kBackward)
    return;
  sums_[{op, instruction.stage}].Add(seconds, instruction);
}

double PassesAlone::Backward(StageId stage) const {
  const double whole = Mean(Op::kBackward, stage);
  if (whole > 0) return whole;
  const double input_grad = Mean(Op::kInputGrad, stage);
  const double weight_grad = Mean(Op::kWeightGrad, stage);
  return input_grad > 0 && weight_grad > 0 ? input_grad + weight_grad : 0;
}

double PassesAlone::Mean(Op op, StageId stage) const {
  const auto found = sums_.find({op, stage});
  return found == sums_.end() ? 0 : found->second.mean();
}

}  // namespace takt::trace
