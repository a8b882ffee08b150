// SPDX-License-Identifier: Apache-2.0
// Over random sizes, costs, limits and orders, the bound holds, the evaluator agrees with the
// simulator, and the search returns a valid schedule.
#include <algorithm>

#include "common/program/lowering.h"
#include "common/schedule/lower_bound.h"
#include "common/schedule/testing/any_family.h"
#include "common/schedule/testing/any_order.h"
#include "common/schedule/validator.h"
#include "common/search/evaluator.h"
#include "common/search/search.h"
#include "common/sim/prove.h"
#include "common/sim/simulate.h"
#include "gtest/gtest.h"
#include "rapidcheck/gtest.h"

namespace takt::search {
namespace {

using schedule::Placement;
using schedule::Schedule;
using schedule::Uniform;

cost::Costs AnyCosts(int num_stages, int num_ranks) {
  const auto by_stage = [&] {
    std::vector<double> costs;
    for (int s = 0; s < num_stages; ++s) costs.push_back(Uniform(1, 50) / 8.0);
    return costs;
  };
  cost::Costs costs{.forward = by_stage(),
                    .input_grad = by_stage(),
                    .weight_grad = by_stage(),
                    .backward = by_stage(),
                    .link = {.latency = Uniform(0, 20) / 8.0}};
  if (num_ranks > 1) costs.links[{PpRank(0), PpRank(1)}].latency = Uniform(0, 40) / 8.0;
  return costs;
}

// A random order may send other numbers of microbatches each way than Request and BoundInputs
// assume.
Schedule AnyOneWayOrder(bool pairs = true) {
  while (true) {
    Schedule schedule = schedule::AnyOrder(pairs);
    if (schedule.placement != Placement::kBidirectional) return schedule;
  }
}

RC_GTEST_PROP(LowerBoundProperty, IsNeverAboveASimulatedStep, ()) {
  const Schedule schedule = Uniform(0, 2) == 0 ? schedule::AnyFamily() : AnyOneWayOrder();
  const cost::Costs costs = AnyCosts(schedule.num_stages, schedule.num_ranks());
  const auto bound = schedule::LowerBound({.placement = schedule.placement,
                                           .num_ranks = schedule.num_ranks(),
                                           .num_stages = schedule.num_stages,
                                           .num_microbatches = schedule.num_microbatches,
                                           .costs = costs,
                                           .max_in_flight = schedule::PeakInFlight(schedule)});
  RC_ASSERT(bound.ok());
  const auto report = sim::Simulate(program::Lower(schedule, {}).value(), costs);
  RC_ASSERT(report.ok());
  RC_ASSERT(bound->makespan <= report->makespan * (1 + 1e-9));
}

RC_GTEST_PROP(EvaluatorProperty, AgreesWithTheSimulator, ()) {
  const Schedule random = AnyOneWayOrder(/*pairs=*/false);
  const int num_chunks = random.num_stages / random.num_ranks();
  Request request{.num_ranks = random.num_ranks(),
                  .num_microbatches = random.num_microbatches,
                  .costs = AnyCosts(random.num_stages, random.num_ranks())};
  const Problem problem = MakeProblem(request, random.placement, num_chunks);
  const Rows rows = FromSchedule(problem, random);
  const Schedule schedule = ToSchedule(problem, rows);
  RC_ASSERT(schedule::Validate(schedule).ok());
  RC_ASSERT(schedule::Warnings(schedule).empty());
  Evaluator evaluator(problem);
  const auto report = sim::Simulate(program::Lower(schedule, {}).value(), request.costs);
  RC_ASSERT(evaluator.Time(rows) == report->makespan);
  // Labels in ascending order are no worse than the original ones.
  const auto original = sim::Simulate(program::Lower(random, {}).value(), [&] {
    cost::Costs costs = request.costs;
    for (int s = 0; s < random.num_stages; ++s)
      costs.backward[s] = costs.input_grad[s] + costs.weight_grad[s];
    return costs;
  }());
  RC_ASSERT(report->makespan <= original->makespan * (1 + 1e-9));
}

// Messages that occupy their link and wait for one another, each for less time than an action
// takes. Longer ones may also find no free buffer, which only the simulator counts.
RC_GTEST_PROP(EvaluatorProperty, AgreesAboutBytesOnTheLinks, ()) {
  const Schedule random = AnyOneWayOrder(/*pairs=*/false);
  Request request{.num_ranks = random.num_ranks(),
                  .num_microbatches = random.num_microbatches,
                  .costs = AnyCosts(random.num_stages, random.num_ranks())};
  request.costs.link.seconds_per_byte = 0.125;
  std::vector<program::StageShape> shapes;
  for (int s = 0; s < random.num_stages; ++s) {
    request.message_bytes.push_back(Uniform(0, 2));
    shapes.push_back({.first_layer = LayerId(s),
                      .last_layer = LayerId(s + 1),
                      .output_bytes = request.message_bytes.back()});
  }
  const Problem problem =
      MakeProblem(request, random.placement, random.num_stages / random.num_ranks());
  const Rows rows = FromSchedule(problem, random);
  const auto programs = program::Lower(ToSchedule(problem, rows), {.stages = shapes});
  RC_ASSERT(programs.ok());
  RC_ASSERT(Evaluator(problem).Time(rows) == sim::Simulate(*programs, request.costs)->makespan);
}

RC_GTEST_PROP(EvaluatorProperty, AgreesAboutReductions, ()) {
  const Schedule random = AnyOneWayOrder(/*pairs=*/false);
  Request request{.num_ranks = random.num_ranks(),
                  .num_microbatches = random.num_microbatches,
                  .costs = AnyCosts(random.num_stages, random.num_ranks())};
  request.costs.reduction.clear();
  for (int s = 0; s < random.num_stages; ++s)
    request.costs.reduction.push_back(Uniform(1, 80) / 8.0);
  request.costs.tied_reduction = Uniform(0, 80) / 8.0;
  const Problem problem =
      MakeProblem(request, random.placement, random.num_stages / random.num_ranks());
  const Rows rows = FromSchedule(problem, random);
  const auto programs = program::Lower(ToSchedule(problem, rows),
                                       {.reduce_gradients = true, .tied_embeddings = true});
  RC_ASSERT(programs.ok());
  RC_ASSERT(Evaluator(problem).Time(rows) == sim::Simulate(*programs, request.costs)->makespan);
}

RC_GTEST_PROP(SearchProperty, GivesASchedule, ()) {
  const int num_ranks = Uniform(1, 6), num_chunks = Uniform(1, 4);
  Request request{.num_ranks = num_ranks,
                  .num_microbatches = Uniform(1, 10),
                  .num_chunks = {num_chunks},
                  .costs = AnyCosts(num_ranks * num_chunks, num_ranks),
                  .max_candidates = 300};
  for (int rank = 0; rank < num_ranks; ++rank)
    request.max_in_flight.push_back(num_chunks + Uniform(0, num_ranks * num_chunks));
  const auto found = Search(request);
  RC_ASSERT(found.ok());
  RC_ASSERT(schedule::Validate(found->schedule).ok());
  const std::vector<int> peaks = schedule::PeakInFlight(found->schedule);
  for (int rank = 0; rank < num_ranks; ++rank)
    RC_ASSERT(peaks[rank] <= request.max_in_flight[rank]);
  const auto programs = program::Lower(found->schedule, {});
  RC_ASSERT(programs.ok());
  RC_ASSERT(sim::Prove(*programs).ok());
  RC_ASSERT(sim::Simulate(*programs, request.costs)->makespan == found->makespan);
}

}  // namespace
}  // namespace takt::search
