// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/statusor.h"
#include "cli/schedule_costs.h"
#include "common/schedule/lower_bound.h"
#include "common/schedule/render.h"
#include "common/schedule/schedule.h"
#include "common/sim/simulate.h"

namespace takt::cli {

struct SimulatedSchedule {
  sim::Report report;
  schedule::Timeline timeline;
  // Of every schedule of the same sizes, placement and costs whose ranks hold no more in flight
  // than the limit, or without one than the largest peak of this one.
  schedule::Bound bound;

  int peak_in_flight() const;  // the largest over ranks
  double gap() const;          // by how much of the bound the makespan is above it
};

// max_in_flight: microbatch-chunks of a rank; 0: no limit.
// Validates, lowers (compute and messages, no optimizer), proves that it completes, and simulates.
// kInvalidArgument: the rule broken.
absl::StatusOr<SimulatedSchedule> SimulateSchedule(const schedule::Schedule& schedule,
                                                   const StepCosts& costs, int max_in_flight);

}  // namespace takt::cli
