// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/id.h"

namespace takt::control {

// An entry of a rank's flight recorder.
struct DoneInstruction {
  std::string instruction;  // e.g. "1F3"
  StepId step;
  double seconds = 0;            // how long it took
  double ended_seconds_ago = 0;  // counted back from the status that it is part of
};

// A worker reports at most this many of the instructions that a rank has done.
inline constexpr std::size_t kRecentInstructions = 16;

// Says what one rank is doing, or was doing when something went wrong.
struct RankStatus {
  Rank rank;
  std::string worker;
  StepId last_step;                     // the last step that the rank completed; 0: none
  std::string instruction;              // current or last on the compute lane, e.g. "1F3"
  std::string waiting_for;              // e.g. "RECV 1F3 from pp rank 0"; empty: nothing
  StepId instruction_step;              // the step of `instruction`; 0: unknown, or part of none
  double instruction_seconds = 0;       // how long the rank has been at `instruction`
  std::optional<absl::Time> time;       // when the coordinator got it; nullopt: not yet
  std::vector<DoneInstruction> recent;  // the last instructions done, in the order of their ends
};

}  // namespace takt::control
