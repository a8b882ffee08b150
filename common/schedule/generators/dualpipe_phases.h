// SPDX-License-Identifier: Apache-2.0
// The eight phases of DualPipe (DeepSeek-V3 report, sec. 3.2; deepseek-ai/DualPipe) on one rank. A
// rank serves two directions, each with a stage and microbatches of its own. F of one direction
// runs overlapped with B of the other.
#pragma once

#include <array>

#include "common/schedule/schedule.h"

namespace takt::schedule {

struct Direction {
  int stage = 0;
  int first_microbatch = 0;
};

struct DualPipeShape {
  int half = 1;              // ranks between the two ends of a direction
  int distance = 0;          // of this rank from the end where direction 0 enters
  int num_microbatches = 1;  // of each direction, at least 2 * half - distance - 1
  std::array<Direction, 2> directions;
};

Row BuildDualPipeRow(const DualPipeShape& shape);

}  // namespace takt::schedule
