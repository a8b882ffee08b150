// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/statusor.h"
#include "cli/schedule_costs.h"
#include "common/schedule/render.h"
#include "common/schedule/schedule.h"
#include "common/sim/simulate.h"

namespace takt::cli {

struct SimulatedSchedule {
  sim::Report report;
  schedule::Timeline timeline;
};

// max_in_flight: microbatch-chunks of a rank; 0: no limit.
// Validates, lowers (compute and messages, no optimizer), proves that it completes, and simulates.
// kInvalidArgument: the rule broken.
absl::StatusOr<SimulatedSchedule> SimulateSchedule(const schedule::Schedule& schedule,
                                                   const StepCosts& costs, int max_in_flight);

}  // namespace takt::cli
