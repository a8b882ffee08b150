// SPDX-License-Identifier: Apache-2.0
#include "cli/simulated_schedule.h"

#include "common/base/status.h"
#include "common/program/lowering.h"
#include "common/schedule/validator.h"
#include "common/sim/timeline.h"

namespace takt::cli {

namespace {

// Layers do not matter here: one a stage.
std::vector<program::StageShape> Shapes(const StepCosts& costs, int num_stages) {
  const auto of_stage = [](const std::vector<std::int64_t>& bytes, int stage) {
    return bytes.size() == 1 ? bytes[0] : bytes[stage];
  };
  std::vector<program::StageShape> shapes;
  for (int stage = 0; stage < num_stages; ++stage) {
    shapes.push_back({.first_layer = LayerId(stage),
                      .last_layer = LayerId(stage + 1),
                      .output_bytes = of_stage(costs.output_bytes, stage),
                      .stash_bytes = of_stage(costs.stash_bytes, stage)});
  }
  return shapes;
}

}  // namespace

absl::StatusOr<SimulatedSchedule> SimulateSchedule(const schedule::Schedule& schedule,
                                                   const StepCosts& costs, int max_in_flight) {
  RETURN_IF_ERROR(schedule::Validate(schedule, {.max_in_flight = max_in_flight}));
  RETURN_IF_ERROR(CheckCostsFit(costs, schedule));
  ASSIGN_OR_RETURN(
      const std::vector<program::Program> programs,
      program::Lower(schedule, {.stages = Shapes(costs, schedule.num_stages), .optimizer = false}));
  RETURN_IF_ERROR(sim::Prove(programs));
  ASSIGN_OR_RETURN(sim::Report report, sim::Simulate(programs, costs.time));
  schedule::Timeline timeline = sim::MakeTimeline(programs, report);
  return SimulatedSchedule{.report = std::move(report), .timeline = std::move(timeline)};
}

}  // namespace takt::cli
