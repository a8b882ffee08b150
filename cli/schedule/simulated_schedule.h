// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "cli/schedule/step_costs.h"
#include "common/schedule/lower_bound.h"
#include "common/schedule/render.h"
#include "common/schedule/schedule.h"
#include "common/sim/simulate.h"

namespace takt::cli {

struct SimulatedSchedule {
  sim::Report report;
  schedule::Timeline timeline;
  // Of every schedule of the same sizes, placement and costs whose ranks hold no more in flight
  // than the limit, or without one than the largest peak of this one. Empty without a flush: such a
  // step has no makespan of its own.
  std::optional<schedule::Bound> bound;

  int peak_in_flight() const;  // the largest over ranks
  double gap() const;          // by how much of the bound the makespan is above it
};

struct StepOptions {
  int max_in_flight = 0;  // microbatch-chunks of a rank; 0: no limit
  // False: a rank updates its weights and goes on when its own gradients are complete.
  bool barrier = true;
};

// Validates, lowers (reductions and the optimizer only where they matter), proves that it
// completes, and simulates: one step, or some in a row if they run into each other.
// kInvalidArgument: the rule broken.
absl::StatusOr<SimulatedSchedule> SimulateSchedule(const schedule::Schedule& schedule,
                                                   const StepCosts& costs,
                                                   const StepOptions& options);

}  // namespace takt::cli
