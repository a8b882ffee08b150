// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "common/schedule/graph.h"

namespace takt::schedule {

// Ranks that wait for one another. Each is stuck at a cell, and after that cell comes what the rank
// before it in the cycle needs.
struct WaitingCycle {
  int rank = 0, position = 0;  // one of the cells
  std::string text;            // all of them: "0B0 (rank 0, cell 2) waits for 1B0, which is ..."
};

// None: rows and data dependencies together can be run to the end.
std::optional<WaitingCycle> FindWaitingCycle(const ActionGraph& graph);

}  // namespace takt::schedule
