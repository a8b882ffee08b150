// SPDX-License-Identifier: Apache-2.0
// Finds the optimum of small problems.
#pragma once

#include <cstdint>
#include <optional>

#include "common/search/problem.h"

namespace takt::search {

struct Exact {
  bool proved = false;  // nothing is shorter than `makespan`
  double makespan = kNever;
  Rows rows;  // with W; empty: nothing shorter than what was known
  std::int64_t num_states = 0;
};

// Appends actions one by one in every way that could still end before `known`. If two ways lead to
// the same counts of actions, the one with no later end anywhere replaces the other. Gives up after
// `max_states`.
Exact SolveExactly(const Problem& problem, double known, std::int64_t max_states);

}  // namespace takt::search
