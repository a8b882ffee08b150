// SPDX-License-Identifier: Apache-2.0
// Over many sizes and costs, lowered programs are proved, take the time of a machine with unlimited
// buffers, and meet the closed forms.
#include <algorithm>
#include <cmath>

#include "common/program/lowering.h"
#include "common/program/program_serde.h"
#include "common/schedule/action_cost.h"
#include "common/schedule/generate.h"
#include "common/schedule/graph.h"
#include "common/schedule/testing/any_family.h"
#include "common/schedule/testing/any_order.h"
#include "common/schedule/validator.h"
#include "common/sim/prove.h"
#include "common/sim/simulate.h"
#include "gtest/gtest.h"
#include "rapidcheck/gtest.h"

namespace takt::sim {
namespace {

using schedule::Action;
using schedule::ActionKind;
using schedule::ActionNumber;
using schedule::AnyFamily;
using schedule::Schedule;
using schedule::Uniform;

Schedule AnySchedule() { return Uniform(0, 2) == 0 ? AnyFamily() : schedule::AnyOrder(); }

cost::Costs AnyCosts(int num_stages) {
  const auto by_stage = [&] {
    std::vector<double> costs;
    for (int s = 0; s < num_stages; ++s) costs.push_back(Uniform(0, 50) / 8.0);
    return costs;
  };
  return {.forward = by_stage(),
          .input_grad = by_stage(),
          .weight_grad = by_stage(),
          .backward = by_stage(),
          .link = {.latency = Uniform(0, 20) / 8.0}};
}

// The end of each action if nothing ever waits for a buffer, but only for the row and for data.
std::vector<double> EndsWithUnlimitedBuffers(const schedule::ActionGraph& graph,
                                             const cost::Costs& costs) {
  std::vector<double> ends(graph.num_actions(), 0);
  const auto input_at = [&](ActionNumber number) {
    const ActionNumber producer = graph.Producer(graph.At(number));
    if (producer < 0) return 0.0;
    const bool remote = graph.RankOf(producer) != graph.RankOf(number);
    return ends[producer] + (remote ? costs.link.latency : 0);
  };
  for (const ActionNumber number : graph.TopologicalOrder()) {
    const Action& action = graph.At(number);
    const ActionNumber partner = graph.Partner(number);
    if (partner >= 0 && action.kind == ActionKind::kBackward) {
      ends[number] = ends[partner];
      continue;
    }
    double start = graph.PositionOf(number) > 0 ? ends[number - 1] : 0;
    start = std::max(start, input_at(number));
    if (partner >= 0) start = std::max(start, input_at(partner));
    const double duration = partner >= 0 ? costs.O(action.stage, graph.At(partner).stage)
                                         : schedule::CostOf(costs, action);
    ends[number] = start + duration;
  }
  return ends;
}

RC_GTEST_PROP(LoweredProperty, IsProved, ()) {
  const Schedule schedule = AnySchedule();
  const auto programs = program::Lower(schedule, {.reduce_gradients = Uniform(0, 2) == 0,
                                                  .tied_embeddings = Uniform(0, 2) == 0,
                                                  .merge_weight_grads = Uniform(0, 2) == 0,
                                                  .optimizer = Uniform(0, 4) != 0});
  RC_ASSERT(programs.ok());
  for (const bool one_fifo : {false, true}) {
    const absl::Status status = Prove(*programs, {.one_fifo_per_pair = one_fifo});
    if (!status.ok()) RC_FAIL(std::string(status.message()));
  }
}

RC_GTEST_PROP(LoweredProperty, RunsAsWithUnlimitedBuffersWhateverTheCosts, ()) {
  const Schedule schedule = AnySchedule();
  const cost::Costs costs = AnyCosts(schedule.num_stages);
  const schedule::ActionGraph graph(schedule);
  const std::vector<double> ends = EndsWithUnlimitedBuffers(graph, costs);
  const auto programs = program::Lower(schedule, {});
  RC_ASSERT(programs.ok());
  const auto report = Simulate(*programs, costs);
  RC_ASSERT(report.ok());
  std::vector<double> simulated;
  for (const Event& event : report->events) {
    const program::Op op = (*programs)[event.pp_rank].body[event.instruction].op;
    simulated.insert(simulated.end(), op == program::Op::kOverlap ? 2 : 1, event.end);
  }
  RC_ASSERT(simulated == ends);
}

RC_GTEST_PROP(LoweredProperty, TakesNoLongerWithWeightGradsMerged, ()) {
  const Schedule schedule = AnySchedule();
  const cost::Costs costs = AnyCosts(schedule.num_stages);
  const auto apart = program::Lower(schedule, {});
  const auto merged = program::Lower(schedule, {.merge_weight_grads = true});
  RC_ASSERT(apart.ok() && merged.ok());
  RC_ASSERT(Simulate(*merged, costs)->makespan == Simulate(*apart, costs)->makespan);
}

RC_GTEST_PROP(LoweredProperty, HasNoPoolLargerThanTheMicrobatches, ()) {
  const Schedule schedule = AnySchedule();
  const auto programs = program::Lower(schedule, {.merge_weight_grads = Uniform(0, 2) == 0});
  const std::vector<int> peaks = schedule::PeakInFlight(schedule);
  for (const program::Program& program : *programs) {
    int stashes = 0;
    for (const program::Slot& slot : program.slots) {
      using program::SlotKind;
      if (slot.kind >= SlotKind::kInput && slot.kind <= SlotKind::kInputGrad) {
        RC_ASSERT(slot.index < schedule.num_microbatches);
      }
      if (slot.kind == SlotKind::kOutput || slot.kind == SlotKind::kInputGrad)
        RC_ASSERT(slot.index < 2);
      stashes += slot.kind == SlotKind::kStash ? 1 : 0;
    }
    RC_ASSERT(stashes >= peaks[program.pp_rank.value()]);
  }
}

RC_GTEST_PROP(LoweredProperty, SendsOneMessagePerRemoteEdge, ()) {
  const Schedule schedule = AnySchedule();
  const auto report = Simulate(program::Lower(schedule, {}).value(), {});
  const schedule::ActionGraph graph(schedule);
  int edges = 0;
  for (ActionNumber number = 0; number < graph.num_actions(); ++number) {
    const ActionNumber taker = graph.Consumer(graph.At(number));
    edges += taker >= 0 && graph.RankOf(taker) != graph.RankOf(number) ? 1 : 0;
  }
  RC_ASSERT(report->num_messages == edges);
}

RC_GTEST_PROP(LoweredProperty, SplitsIdleTimeWithNothingLeft, ()) {
  const Schedule schedule = AnySchedule();
  const auto report =
      Simulate(program::Lower(schedule, {.merge_weight_grads = Uniform(0, 2) == 0}).value(),
               AnyCosts(schedule.num_stages));
  for (const RankReport& rank : report->ranks) {
    const double idle =
        rank.warmup_idle + rank.steady_idle + rank.cooldown_idle + rank.internal_idle;
    RC_ASSERT(std::abs(rank.busy + idle - report->makespan) < 1e-9);
  }
}

RC_GTEST_PROP(LoweredProperty, HasACriticalPathWithoutGaps, ()) {
  const Schedule schedule = AnySchedule();
  cost::Costs costs = AnyCosts(schedule.num_stages);
  costs.reduction = {Uniform(0, 9) / 4.0};
  costs.tied_reduction = Uniform(0, 9) / 4.0;
  costs.optimizer = {Uniform(0, 9) / 4.0};
  const auto report = Simulate(program::Lower(schedule, {.reduce_gradients = Uniform(0, 2) == 0,
                                                         .tied_embeddings = Uniform(0, 2) == 0})
                                   .value(),
                               costs);
  double end = 0;
  for (const CriticalLink& link : report->critical_path) {
    RC_ASSERT(link.start == end);
    RC_ASSERT((link.after == CriticalLink::After::kNothing) == (link.start == 0));
    end = link.end;
  }
  RC_ASSERT(end == report->makespan);
}

RC_GTEST_PROP(LoweredProperty, DamagedOnTheWireIsRefusedOrStillSafeToJudge, ()) {
  auto programs = program::Lower(AnySchedule(), {.reduce_gradients = true}).value();
  program::Program& damaged = programs[Uniform(0, static_cast<int>(programs.size()))];
  std::string bytes = program::ToProto(damaged).SerializeAsString();
  for (int i = 0; i < 3; ++i) {
    bytes[Uniform(0, static_cast<int>(bytes.size()))] = static_cast<char>(Uniform(0, 256));
  }
  v1::Program proto;
  if (!proto.ParseFromString(bytes)) return;
  auto parsed = program::FromProto(proto);
  if (!parsed.ok()) return;
  damaged = *std::move(parsed);
  Prove(programs).IgnoreError();
  Simulate(programs, {}).status().IgnoreError();
}

RC_GTEST_PROP(ClosedForm, MakespanOfEachFamily, ()) {
  const Schedule schedule = AnyFamily();
  const double p = schedule.num_ranks();
  const double m = schedule.num_microbatches;
  const double v = schedule.num_stages / p;
  const auto report = Simulate(program::Lower(schedule, {}).value(), {});
  RC_ASSERT(report.ok());
  if (schedule.name == "naive") RC_ASSERT(report->makespan == 3 * m * p);
  if (schedule.name == "gpipe" || schedule.name == "1f1b") {
    RC_ASSERT(report->makespan == 3 * (m + p - 1));
    RC_ASSERT(std::abs(report->bubble_fraction - (p - 1) / (m + p - 1)) < 1e-12);
  }
  if (schedule.name == "interleaved-1f1b") {
    RC_ASSERT(report->makespan == 3 * (v * m + p - 1));
    RC_ASSERT(std::abs(report->bubble_fraction - (p - 1) / (v * m + p - 1)) < 1e-12);
  }
}

}  // namespace
}  // namespace takt::sim
