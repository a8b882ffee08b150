// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace takt::bench {

// What the engine adds to instructions that do nothing, in nanoseconds.
struct InstructionCost {
  double instruction_nanoseconds = 0;  // one after another on a lane
  double handoff_nanoseconds =
      0;  // each waits for one of another lane: a thread is woken every time
};

InstructionCost MeasureInstructionCost();

}  // namespace takt::bench
