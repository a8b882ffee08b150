// SPDX-License-Identifier: Apache-2.0
// Splits the predicted step of a candidate into what it consists of.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/plan/candidate.h"
#include "common/plan/stage_costs.h"
#include "common/schedule/lower_bound.h"

namespace takt::plan {
namespace {

// Returns what the update takes on the mean rank and on the slowest. Where steps overlap, weights
// are foreseen, too.
std::pair<double, double> UpdateSeconds(const Plan& plan) {
  const bool overlaps = OverlapsSteps(plan);
  double sum = 0, longest = 0;
  for (PpRank rank(0); rank.value() < plan.mesh.pp_size; ++rank) {
    const double seconds = plan.costs.Optimizer(rank) + (overlaps ? plan.costs.Foresight(rank) : 0);
    sum += seconds;
    longest = std::max(longest, seconds);
  }
  return {sum / plan.mesh.pp_size, longest};
}

// Returns the passes of a step on the mean rank and on the one that has most, a spread vocabulary's
// with them.
std::pair<double, double> WorkSeconds(const Plan& plan) {
  const cost::Costs& costs = plan.costs;
  std::vector<double> of_ranks(plan.mesh.pp_size, 0);
  for (const mesh::Stage& stage : plan.partition)
    of_ranks[stage.pp_rank.value()] += costs.F(stage.id) + costs.I(stage.id) + costs.W(stage.id);
  double sum = 0, most = 0;
  for (PpRank rank(0); rank.value() < plan.mesh.pp_size; ++rank) {
    const double seconds =
        plan.schedule.num_microbatches * (of_ranks[rank.value()] + costs.S(rank) + costs.T(rank));
    sum += seconds;
    most = std::max(most, seconds);
  }
  return {sum / plan.mesh.pp_size, most};
}

// Returns what the meetings inside passes take on the mean rank.
double MeetingSeconds(const sim::Report& report) {
  double sum = 0;
  for (const sim::RankReport& rank : report.ranks) sum += rank.meetings;
  return sum / static_cast<double>(report.ranks.size());
}

// Returns by how much a step is shorter if sums of gradients take no time.
absl::StatusOr<double> SyncSeconds(const Plan& plan) {
  cost::Costs costs = plan.costs;
  costs.reduction = {0};
  costs.tied_reduction = 0;
  ASSIGN_OR_RETURN(const sim::Report report, SimulateSteps(plan.schedule, plan.programs, costs));
  return plan.predicted_step_seconds - report.step_time;
}

// Counts parts that are only what sums of times were rounded by as computing, so that they are 0
// and all parts are still the step.
void DropRounding(double step, Parts& parts) {
  constexpr double kRounding = 1e-9;  // of the step
  for (double* const part :
       {&parts.imbalance, &parts.communication, &parts.sync, &parts.schedule}) {
    if (std::abs(*part) > kRounding * step) continue;
    parts.compute += *part;
    *part = 0;
  }
}

}  // namespace

absl::StatusOr<Parts> PartsOf(const CandidateInputs& inputs, const Candidate& candidate) {
  const Plan& plan = candidate.plan;
  const double step = plan.predicted_step_seconds;
  const auto [mean_update, longest_update] = UpdateSeconds(plan);
  const bool overlaps = OverlapsSteps(plan);
  Parts parts{.compute = (1 - plan.predicted_bubble_fraction) * step + mean_update,
              .imbalance = longest_update - mean_update};
  ASSIGN_OR_RETURN(parts.sync, SyncSeconds(plan));
  // The lower bound is that of a step by itself.
  if (plan.schedule.updates == schedule::Updates::kFlush && !overlaps) {
    std::vector<std::int64_t> message_bytes;
    for (const mesh::Stage& stage : plan.partition) {
      const model::Layer& last = inputs.model.layers[stage.last_layer.value() - 1];
      message_bytes.push_back(last.cost.output_bytes);
    }
    ASSIGN_OR_RETURN(
        const schedule::Bound bound,
        schedule::LowerBound({.placement = plan.schedule.placement,
                              .num_ranks = plan.mesh.pp_size,
                              .num_stages = plan.schedule.num_stages,
                              .num_microbatches = plan.schedule.num_microbatches,
                              .costs = WithMeetings(inputs, plan.partition, plan.costs),
                              .max_in_flight = {candidate.report.peak_in_flight()},
                              .message_bytes = std::move(message_bytes)}));
    // The bound of the stages does not know of the vocabulary's passes.
    const bool spreads = plan.schedule.spreads_vocabulary;
    const auto [mean_work, most_work] = spreads ? WorkSeconds(plan) : std::pair(0.0, 0.0);
    parts.imbalance += spreads ? most_work - mean_work : bound.imbalance;
    parts.communication = bound.communication + MeetingSeconds(candidate.report);
    parts.lower_bound = std::max(bound.makespan, most_work) + longest_update;
  }
  parts.schedule = step - parts.compute - parts.imbalance - parts.communication - parts.sync;
  DropRounding(step, parts);
  return parts;
}

absl::StatusOr<double> StepOnOneHost(const CandidateInputs& inputs, const Plan& plan) {
  cost::Costs costs = plan.costs;
  costs.tensor = {TensorGroupCost(inputs, /*same_host=*/true)};
  ASSIGN_OR_RETURN(const sim::Report report, SimulateSteps(plan.schedule, plan.programs, costs));
  return report.step_time;
}

}  // namespace takt::plan
