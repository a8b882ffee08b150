// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace takt::bench {

// The time that the engine adds to instructions that do nothing, in nanoseconds.
struct InstructionCost {
  double instruction_nanoseconds = 0;  // they follow each other on one lane
  // Each instruction waits for one of another lane, so a thread is woken every time.
  double handoff_nanoseconds = 0;
};

InstructionCost MeasureInstructionCost();

}  // namespace takt::bench
