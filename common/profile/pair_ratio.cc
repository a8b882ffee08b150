// SPDX-License-Identifier: Apache-2.0
#include "common/profile/pair_ratio.h"

#include "common/program/part_lists.h"

namespace takt::profile {

using program::Op;

void PairRatio::Add(const program::Instruction& instruction, double seconds) {
  if (instruction.op != Op::kOverlap) {
    alone_.Add(instruction, seconds);
  } else if (halves_run_beside_ && !program::PartListOf(instruction, program_).empty()) {
    pairs_[{instruction.stage, instruction.backward_stage}].Add(seconds, instruction);
  }
}

double PairRatio::Get() const {
  double together = 0, apart = 0;
  for (const auto& [stages, pair] : pairs_) {
    const double forward = alone_.Forward(stages.first);
    const double backward = alone_.Backward(stages.second);
    if (forward == 0 || backward == 0) continue;
    together += pair.seconds;
    apart += pair.count * (forward + backward);
  }
  return apart > 0 ? together / apart : 0;
}

}  // namespace takt::profile
