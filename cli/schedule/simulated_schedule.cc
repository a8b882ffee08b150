// SPDX-License-Identifier: Apache-2.0
#include "cli/schedule/simulated_schedule.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/program/lowering.h"
#include "common/schedule/spread_vocabulary.h"
#include "common/schedule/validator.h"
#include "common/sim/executed.h"
#include "common/sim/prove.h"
#include "common/sim/timeline.h"

namespace takt::cli {

namespace {

// For steps that run into each other, the time counts from the second one on, when the pipeline is
// full.
constexpr int kStepsInARow = 4;

std::vector<std::int64_t> ByStage(const std::vector<std::int64_t>& bytes, int num_stages) {
  return bytes.size() == 1 ? std::vector<std::int64_t>(num_stages, bytes[0]) : bytes;
}

// Gives each stage one layer, since layers do not matter here.
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

std::optional<program::VocabularyShape> SizelessVocabulary(const schedule::Schedule& schedule) {
  if (!schedule.spreads_vocabulary) return std::nullopt;
  return program::VocabularyShape{};
}

// Leaves out what takes no time, which makes the programs of large steps half as long.
absl::StatusOr<program::LowerOptions> Lowering(const schedule::Schedule& schedule,
                                               const StepCosts& costs, const StepOptions& options) {
  const cost::Costs& time = costs.time;
  const bool reduces =
      std::any_of(time.reduction.begin(), time.reduction.end(), [](double t) { return t > 0; });
  const bool ties = time.tied_reduction > 0;
  if ((reduces || ties) && schedule.updates == schedule::Updates::kEachBackward) {
    return InvalidField(
        {.field = reduces ? "stages[].reduction" : "tied_reduction",
         .value = "not 0",
         .rule = absl::StrCat(schedule.name, " applies each gradient at once and sums none"),
         .fix = "leave it out, or use pipedream-2bw"});
  }
  return program::LowerOptions{
      .stages = Shapes(costs, schedule.num_stages),
      .reduce_gradients = reduces,
      .tied_embeddings = ties,
      .optimizer = reduces || ties || std::ranges::max(time.optimizer) > 0 || !options.barrier,
      .vocabulary = SizelessVocabulary(schedule)};
}

// How many more forwards may come before a backward.
constexpr int kDeepest = 3;

}  // namespace

double SimulatedSchedule::gap() const {
  if (!bound.has_value() || !(bound->makespan > 0)) return 0;
  const double gap = report.makespan / bound->makespan - 1;
  return std::abs(gap) < 1e-12 ? 0 : gap;  // sums in another order differ in their last bits
}

absl::StatusOr<SimulatedSchedule> SimulateSchedule(const schedule::Schedule& schedule,
                                                   const StepCosts& costs,
                                                   const StepOptions& options) {
  RETURN_IF_ERROR(schedule::Validate(schedule, {.max_in_flight = options.max_in_flight}));
  RETURN_IF_ERROR(CheckCostsFit(costs, schedule));
  const bool flushes = schedule.updates == schedule::Updates::kFlush;
  ASSIGN_OR_RETURN(const program::LowerOptions lowering, Lowering(schedule, costs, options));
  ASSIGN_OR_RETURN(std::vector<program::Program> programs, program::Lower(schedule, lowering));
  RETURN_IF_ERROR(sim::Prove(programs, {.schedule = &schedule}));
  // Published figures have whole pairs. What was measured predicts what engines do.
  if (!costs.measured.empty())
    programs = sim::AsExecuted(programs, costs.time.halves_run_beside).programs;
  ASSIGN_OR_RETURN(sim::Report report,
                   sim::Simulate(programs, costs.time,
                                 {.steps = flushes && options.barrier ? 1 : kStepsInARow,
                                  .barrier = options.barrier}));
  schedule::Timeline timeline = sim::MakeTimeline(programs, report);
  SimulatedSchedule simulated{
      .report = std::move(report), .timeline = std::move(timeline), .flushes = flushes};
  if (!flushes || schedule.spreads_vocabulary) return simulated;
  ASSIGN_OR_RETURN(
      simulated.bound,
      schedule::LowerBound(
          {.placement = schedule.placement,
           .num_ranks = schedule.num_ranks(),
           .num_stages = schedule.num_stages,
           .num_microbatches = schedule.num_microbatches,
           .costs = costs.time,
           .max_in_flight = {options.max_in_flight > 0 ? options.max_in_flight
                                                       : simulated.report.peak_in_flight()},
           .message_bytes = ByStage(costs.output_bytes, schedule.num_stages)}));
  return simulated;
}

absl::StatusOr<schedule::Schedule> WithVocabulary(schedule::Schedule schedule,
                                                  const StepCosts& costs,
                                                  const StepOptions& options) {
  if (!costs.spreads_vocabulary || schedule.spreads_vocabulary) return schedule;
  RETURN_IF_ERROR(schedule::Validate(schedule, {.max_in_flight = options.max_in_flight}));
  RETURN_IF_ERROR(CheckCostsFit(costs, schedule));
  schedule::Schedule shortest;
  double least = 0;
  for (int depth = 0; depth <= kDeepest; ++depth) {
    absl::StatusOr<schedule::Schedule> deep =
        schedule::SpreadVocabulary(schedule, costs.time, depth);
    if (depth > 0 && !deep.ok()) continue;  // it does not fit the schedule
    ASSIGN_OR_RETURN(schedule::Schedule spread, std::move(deep));
    const absl::StatusOr<SimulatedSchedule> simulated = SimulateSchedule(spread, costs, options);
    if (!simulated.ok() && depth > 0) break;  // it holds more in flight than the limit
    RETURN_IF_ERROR(simulated.status());
    if (depth > 0 && simulated->report.makespan >= least) continue;
    least = simulated->report.makespan;
    shortest = std::move(spread);
  }
  return shortest;
}

}  // namespace takt::cli
