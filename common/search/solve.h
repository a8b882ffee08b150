// SPDX-License-Identifier: Apache-2.0
// Searches for one placement and number of chunks.
#pragma once

#include <string>

#include "common/search/improve.h"
#include "common/search/problem.h"

namespace takt::search {

struct Solution {
  Rows rows;  // with W
  double makespan = kNever;
  std::string origin;
};

// request: checked. bound: no schedule is shorter. A makespan of kNever: no schedule fits the
// memory.
Solution Solve(const Request& request, const Problem& problem, double bound, Budget& budget);

}  // namespace takt::search
