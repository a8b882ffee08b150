// SPDX-License-Identifier: Apache-2.0
#include "cli/simulated_schedule.h"

#include "common/base/status.h"
#include "common/program/lowering.h"
#include "common/schedule/validator.h"
#include "common/sim/timeline.h"

namespace takt::cli {

absl::StatusOr<SimulatedSchedule> SimulateSchedule(const schedule::Schedule& schedule,
                                                   const cost::Costs& costs) {
  RETURN_IF_ERROR(schedule::Validate(schedule));
  ASSIGN_OR_RETURN(const std::vector<program::Program> programs,
                   program::Lower(schedule, {.optimizer = false}));
  RETURN_IF_ERROR(sim::Prove(programs));
  ASSIGN_OR_RETURN(sim::Report report, sim::Simulate(programs, costs));
  schedule::Timeline timeline = sim::MakeTimeline(programs, report);
  timeline.title = schedule.name;
  return SimulatedSchedule{.report = std::move(report), .timeline = std::move(timeline)};
}

}  // namespace takt::cli
