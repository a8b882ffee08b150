// SPDX-License-Identifier: Apache-2.0
// Times a schedule by the longest path through its actions: rows in order, data dependencies, a
// latency per message. It knows nothing of lowering, so it can disagree with the simulator.
#pragma once

#include "common/cost/costs.h"
#include "common/schedule/schedule.h"

namespace takt::schedule {

struct Timing {
  double makespan = 0;
  double idle = 0;  // makespan less the busy time of the busiest rank
};

// schedule: valid. An overlapped pair begins when the inputs of both halves are there and ends for
// both at once.
Timing DryRun(const Schedule& schedule, const cost::Costs& costs);

}  // namespace takt::schedule
