// SPDX-License-Identifier: Apache-2.0
#include "common/profile/pair_ratio.h"

#include "common/program/part_lists.h"

namespace takt::profile {

using program::Op;

void PairRatio::Add(const program::Instruction& instruction, double seconds) {
  if (!program::IsCompute(instruction.op)) return;
  const bool pair = instruction.op == Op::kOverlap;
  if (pair && !(halves_run_beside_ && !program::PartListOf(instruction, program_).empty())) return;
  Sum& sum = pair ? pairs_[{instruction.stage, instruction.backward_stage}]
                  : alone_[{instruction.stage, instruction.op}];
  sum.seconds += seconds;
  sum.count += instruction.num_microbatches;
}

double PairRatio::AloneSeconds(StageId stage, Op op) const {
  const auto found = alone_.find({stage, op});
  return found == alone_.end() ? 0.0 : found->second.seconds / found->second.count;
}

double PairRatio::Get() const {
  double together = 0, apart = 0;
  for (const auto& [stages, pair] : pairs_) {
    const double forward = AloneSeconds(stages.first, Op::kForward);
    const double input_grad = AloneSeconds(stages.second, Op::kInputGrad);
    const double weight_grad = AloneSeconds(stages.second, Op::kWeightGrad);
    double backward = AloneSeconds(stages.second, Op::kBackward);
    if (backward == 0 && input_grad > 0 && weight_grad > 0) backward = input_grad + weight_grad;
    if (forward == 0 || backward == 0) continue;
    together += pair.seconds;
    apart += pair.count * (forward + backward);
  }
  return apart > 0 ? together / apart : 0;
}

}  // namespace takt::profile
