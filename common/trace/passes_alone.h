// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <utility>

#include "common/base/id.h"
#include "common/program/program.h"

namespace takt::trace {

// The time of some instructions, and how many microbatches they are of.
struct TimeSum {
  double seconds = 0;
  int count = 0;

  void Add(double more, const program::Instruction& instruction) {
    seconds += more;
    count += instruction.num_microbatches;
  }
  double mean() const { return count > 0 ? seconds / count : 0; }
};

// How long the passes of stages take on one rank outside of pairs, for one microbatch.
class PassesAlone {
 public:
  // Instructions other than F, I, W and B are ignored.
  void Add(const program::Instruction& instruction, double seconds);

  // Return 0 if the stage has no such pass outside of pairs. A stage whose B only runs in pairs has
  // the time of its I and its W.
  double Forward(StageId stage) const { return Mean(program::Op::kForward, stage); }
  double Backward(StageId stage) const;

 private:
  double Mean(program::Op op, StageId stage) const;

  std::map<std::pair<program::Op, StageId>, TimeSum> sums_;
};

}  // namespace takt::trace
