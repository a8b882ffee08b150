// SPDX-License-Identifier: Apache-2.0
// Finds the chain of actions, messages and reductions that determines a makespan, backwards from
// its end: an instruction began when the last of those that it waited for ended.
#pragma once

#include <vector>

#include "common/program/program.h"
#include "common/sim/machine.h"
#include "common/sim/simulate.h"

namespace takt::sim {

// machine: has run `programs`. last: the instruction of the first step that ends last.
std::vector<CriticalLink> FindCriticalPath(const std::vector<program::Program>& programs,
                                           const Machine& machine, Machine::Place last);

}  // namespace takt::sim
