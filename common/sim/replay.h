// SPDX-License-Identifier: Apache-2.0
// Programs run again with what each of their instructions took, or would take.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "common/program/program.h"
#include "common/sim/machine.h"

namespace takt::sim {

// Makes one pipeline of all data-parallel copies of a pipeline. The program of pp rank p and copy d
// is number p * num_copies + d, which is its rank in the mesh. Copies meet in their sums over
// ranks.
std::vector<program::Program> SpreadOverCopies(const std::vector<program::Program>& programs,
                                               int num_copies);

// The outcome of consecutive steps that all have the same durations.
struct Replayed {
  double step_time = 0;                           // what a step adds once they follow each other
  std::vector<std::vector<Machine::Span>> spans;  // of the last step, by rank and instruction
  double end_of_previous = 0;                     // when the step before the last one ended
};

// As of MachineOptions.
struct ReplayOptions {
  const Durations* meetings = nullptr;
  int tensor = 1, context = 1;
};

// kInvalidArgument: the durations are not one for each instruction, and one for each meeting inside
// them, finite and not negative, or the programs never complete.
absl::StatusOr<Replayed> Replay(const std::vector<program::Program>& programs,
                                const Durations& durations, const ReplayOptions& options = {});

}  // namespace takt::sim
