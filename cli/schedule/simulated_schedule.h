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
  // The lower bound for all schedules of the same sizes, placement and costs whose ranks hold no
  // more in flight than the limit, or without a limit, than the largest peak of this one. Empty
  // without a flush, because such a step has no makespan of its own, and for a spread vocabulary,
  // because the bound does not know S and T.
  std::optional<schedule::Bound> bound;
  bool flushes = true;

  double gap() const;  // (makespan - bound) / bound
};

struct StepOptions {
  int max_in_flight = 0;  // limit of microbatch-chunks of a rank; 0: none
  // False: a rank updates its weights and goes on when its own gradients are complete.
  bool barrier = true;
};

// Validates the schedule, lowers it (with reductions and the optimizer only where they matter),
// proves that it completes, and simulates one step, or several in a row if they run into each
// other. kInvalidArgument: the schedule breaks a rule.
absl::StatusOr<SimulatedSchedule> SimulateSchedule(const schedule::Schedule& schedule,
                                                   const StepCosts& costs,
                                                   const StepOptions& options);

// Returns the schedule with S and T on every rank if the costs have them and it has none. It tries
// 0 to 3 more forwards before each backward. The shortest step wins, the smallest number of equal
// ones.
// kInvalidArgument: as schedule::SpreadVocabulary and SimulateSchedule.
absl::StatusOr<schedule::Schedule> WithVocabulary(schedule::Schedule schedule,
                                                  const StepCosts& costs,
                                                  const StepOptions& options);

}  // namespace takt::cli
