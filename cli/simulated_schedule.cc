// SPDX-License-Identifier: Apache-2.0
#include "cli/simulated_schedule.h"

#include <algorithm>
#include <cmath>

#include "common/base/status.h"
#include "common/program/lowering.h"
#include "common/schedule/validator.h"
#include "common/sim/prove.h"
#include "common/sim/timeline.h"

namespace takt::cli {

namespace {

std::vector<std::int64_t> ByStage(const std::vector<std::int64_t>& bytes, int num_stages) {
  return bytes.size() == 1 ? std::vector<std::int64_t>(num_stages, bytes[0]) : bytes;
}

// Layers do not matter here: one a stage.
std::vector<program::StageShape> Shapes(const StepCosts& costs, int num_stages) {
  const std::vector<std::int64_t> output_bytes = ByStage(costs.output_bytes, num_stages);
  const std::vector<std::int64_t> stash_bytes = ByStage(costs.stash_bytes, num_stages);
  std::vector<program::StageShape> shapes;
  for (int stage = 0; stage < num_stages; ++stage) {
    shapes.push_back({.first_layer = LayerId(stage),
                      .last_layer = LayerId(stage + 1),
                      .output_bytes = output_bytes[stage],
                      .stash_bytes = stash_bytes[stage]});
  }
  return shapes;
}

int PeakInFlight(const sim::Report& report) {
  int peak = 0;
  for (const sim::RankReport& rank : report.ranks) peak = std::max(peak, rank.peak_in_flight);
  return peak;
}

}  // namespace

int SimulatedSchedule::peak_in_flight() const { return PeakInFlight(report); }

double SimulatedSchedule::gap() const {
  if (!(bound.makespan > 0)) return 0;
  const double gap = report.makespan / bound.makespan - 1;
  return std::abs(gap) < 1e-12 ? 0 : gap;  // sums in another order differ in their last bits
}

absl::StatusOr<SimulatedSchedule> SimulateSchedule(const schedule::Schedule& schedule,
                                                   const StepCosts& costs, int max_in_flight) {
  RETURN_IF_ERROR(schedule::Validate(schedule, {.max_in_flight = max_in_flight}));
  RETURN_IF_ERROR(CheckCostsFit(costs, schedule));
  ASSIGN_OR_RETURN(
      const std::vector<program::Program> programs,
      program::Lower(schedule, {.stages = Shapes(costs, schedule.num_stages), .optimizer = false}));
  RETURN_IF_ERROR(sim::Prove(programs, {.schedule = &schedule}));
  ASSIGN_OR_RETURN(sim::Report report, sim::Simulate(programs, costs.time));
  ASSIGN_OR_RETURN(const schedule::Bound bound,
                   schedule::LowerBound(
                       {.placement = schedule.placement,
                        .num_ranks = schedule.num_ranks(),
                        .num_stages = schedule.num_stages,
                        .num_microbatches = schedule.num_microbatches,
                        .costs = costs.time,
                        .max_in_flight = {max_in_flight > 0 ? max_in_flight : PeakInFlight(report)},
                        .message_bytes = ByStage(costs.output_bytes, schedule.num_stages)}));
  schedule::Timeline timeline = sim::MakeTimeline(programs, report);
  return SimulatedSchedule{
      .report = std::move(report), .timeline = std::move(timeline), .bound = bound};
}

}  // namespace takt::cli
