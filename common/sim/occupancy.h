// SPDX-License-Identifier: Apache-2.0
// Finds how much a rank holds at once, of what it computes with and of what travels.
#pragma once

#include <vector>

#include "common/program/program.h"
#include "common/sim/machine.h"
#include "common/sim/simulate.h"

namespace takt::sim {

// Fills the peaks of `report` for one rank of the first step. machine: has run the program.
void FindPeaks(const program::Program& program, const Machine& machine, RankReport& report);

// Returns what one rank holds during the first step, as Report::held has it. machine: has run the
// program.
std::vector<HeldBytes> HeldOverTime(const program::Program& program, const Machine& machine);

}  // namespace takt::sim
