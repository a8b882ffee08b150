// SPDX-License-Identifier: Apache-2.0
#include "common/explain/other_schedules.h"

#include <algorithm>

#include "common/program/lowering.h"
#include "common/program/split_pairs.h"
#include "common/schedule/generate.h"
#include "common/sim/executed.h"

namespace takt::explain {
namespace {

using program::Program;

constexpr std::int64_t kMostActions = 8192;  // larger programs would take more than a second to try

void FillUnmeasured(cost::Costs& costs) {
  for (std::size_t stage = 0; stage < costs.backward.size(); ++stage) {
    double& input_grad = costs.input_grad[stage];
    double& weight_grad = costs.weight_grad[stage];
    double& backward = costs.backward[stage];
    if (backward == 0) backward = input_grad + weight_grad;
    if (input_grad == 0 && weight_grad == 0) input_grad = weight_grad = backward / 2;
  }
}

bool SamePlaces(const std::vector<Program>& programs, schedule::Placement placement) {
  const int num_ranks = static_cast<int>(programs.size());
  for (const Program& program : programs) {
    if (program.mirror.value() >= 0) return false;
    for (const StageId stage : program::HeldStages(program)) {
      if (schedule::RankOfStage(placement, num_ranks, stage) != program.pp_rank) return false;
    }
  }
  return true;
}

// The simulation has no optimizer, because its cost is the same in all schedules.
std::optional<sim::Report> Try(const schedule::Family& family, const std::vector<Program>& programs,
                               const cost::Costs& costs) {
  const int num_ranks = static_cast<int>(programs.size());
  const int num_chunks = programs[0].num_stages / num_ranks;
  if (family.updates != schedule::Updates::kFlush ||
      family.placement == schedule::Placement::kBidirectional || family.overlaps ||
      !SamePlaces(programs, family.placement) ||
      (!family.uses_chunks && family.num_chunks != num_chunks)) {
    return std::nullopt;
  }
  schedule::GenerateOptions options{
      .num_ranks = num_ranks, .num_microbatches = programs[0].num_microbatches, .costs = costs};
  if (family.uses_chunks) options.num_chunks = num_chunks;
  const auto schedule = schedule::Generate(family.name, options);
  if (!schedule.ok() || schedule->num_stages != programs[0].num_stages) return std::nullopt;
  const auto lowered = program::Lower(*schedule, {.optimizer = false});
  if (!lowered.ok()) return std::nullopt;
  const auto report = sim::SimulateExecuted(*lowered, costs);
  return report.ok() ? std::optional(*report) : std::nullopt;
}

}  // namespace

std::optional<OtherSchedule> FindBetterSchedule(const std::vector<Program>& programs,
                                                cost::Costs costs) {
  if (std::int64_t{programs[0].num_stages} * programs[0].num_microbatches > kMostActions) {
    return std::nullopt;
  }
  // Only a plan finds out which schedules have room for S and T (`takt plan`).
  if (program::SpreadsVocabulary(programs[0])) return std::nullopt;
  // Steps that overlap are not to be compared with those of others by themselves.
  if (program::OverlapsSteps(programs[0])) return std::nullopt;
  // The costs have no meetings, so what halves gain by hiding them is missing.
  if (costs.halves_run_beside && std::ranges::any_of(programs, program::PairsMeet))
    return std::nullopt;
  FillUnmeasured(costs);
  const auto current = sim::SimulateExecuted(programs, costs);
  if (!current.ok()) return std::nullopt;
  std::optional<OtherSchedule> best;
  for (const schedule::Family& family : schedule::Families()) {
    const std::optional<sim::Report> report = Try(family, programs, costs);
    if (!report.has_value()) continue;
    const OtherSchedule other{.name = std::string(family.name),
                              .saved_seconds = current->makespan - report->makespan,
                              .peak_in_flight = report->peak_in_flight(),
                              .current_peak_in_flight = current->peak_in_flight()};
    if (other.saved_seconds <= 0 || other.peak_in_flight > 2 * other.current_peak_in_flight) {
      continue;
    }
    // If two are equally fast, the one that holds less wins.
    const bool better = !best.has_value() ||
                        other.saved_seconds > best->saved_seconds * (1 + 1e-6) ||
                        (other.saved_seconds > best->saved_seconds * (1 - 1e-6) &&
                         other.peak_in_flight < best->peak_in_flight);
    if (better) best = other;
  }
  return best;
}

}  // namespace takt::explain
