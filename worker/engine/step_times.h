// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/program/program.h"
#include "worker/engine/engine.h"
#include "worker/engine/instruction_timing.h"

namespace takt::engine {

// Makes the report of a step, in which the halves of a pair are one instruction again. Thread: that
// of the caller of Engine::Run.
class StepTimes {
 public:
  // whole: borrowed. origins: program::SplitProgram::origins; empty: it has no pairs.
  StepTimes(const program::Program& whole, std::vector<std::int32_t> origins);

  // timings: of the instructions that ran. meetings: of the meetings inside them. The result points
  // to both, or to memory of this object that is valid until the next call.
  StepTiming Summarize(StepId step, const std::vector<InstructionTiming>& timings,
                       const std::vector<InstructionTiming>& meetings, std::int64_t previous_end);

 private:
  // Fills timings_ and meetings_.
  void JoinHalves(const std::vector<InstructionTiming>& timings,
                  const std::vector<InstructionTiming>& meetings);

  const program::Program& whole_;
  const std::vector<std::int32_t> origins_;
  const std::vector<std::size_t> meetings_at_;  // program::MeetingOffsets of the whole
  std::vector<InstructionTiming> timings_, meetings_;
};

}  // namespace takt::engine
