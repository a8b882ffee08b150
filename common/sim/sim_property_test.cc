// SPDX-License-Identifier: Apache-2.0
// Over many sizes and costs: lowered programs are proved, equal a machine with unlimited buffers,
// and meet the closed forms.
#include <algorithm>
#include <cmath>

#include "common/program/lowering.h"
#include "common/schedule/generate.h"
#include "common/schedule/graph.h"
#include "common/schedule/validator.h"
#include "common/sim/simulate.h"
#include "gtest/gtest.h"
#include "rapidcheck/gtest.h"

namespace takt::sim {
namespace {

using schedule::Action;
using schedule::ActionKind;
using schedule::ActionNumber;
using schedule::Schedule;

int Uniform(int low, int high) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(low, high));
}

Schedule AnyFamily() {
  const std::span<const schedule::Family> families = schedule::Families();
  const schedule::Family& family = families[Uniform(0, static_cast<int>(families.size()))];
  schedule::GenerateOptions options{.num_ranks = Uniform(1, 9), .num_microbatches = Uniform(1, 17)};
  if (family.uses_chunks) {
    options.num_chunks = Uniform(2, 5);
    options.num_microbatches = std::max(options.num_microbatches, options.num_ranks);
  }
  return schedule::Generate(family.name, options).value();
}

// A random valid order with split and joint backwards in either placement: each step runs any
// action that can.
Schedule AnyOrder() {
  Schedule schedule{.name = "random"};
  const int num_ranks = Uniform(1, 6);
  const bool v = Uniform(0, 2) == 0;
  schedule.placement = v ? schedule::Placement::kV : schedule::Placement::kLoop;
  schedule.num_stages = num_ranks * (v ? 2 : Uniform(1, 4));
  schedule.num_microbatches = Uniform(1, 7);
  schedule.ranks.resize(num_ranks);
  const int last = schedule.num_stages - 1;
  const auto row_of = [&](const Action& action) -> auto& {
    return schedule.ranks[RankOfStage(schedule.placement, num_ranks, action.stage).value()];
  };
  std::vector<Action> ready;
  for (int m = 0; m < schedule.num_microbatches; ++m) {
    ready.push_back({StageId(0), ActionKind::kForward, MicrobatchId(m)});
  }
  while (!ready.empty()) {
    const std::size_t pick = Uniform(0, static_cast<int>(ready.size()));
    const Action action = ready[pick];
    ready.erase(ready.begin() + pick);
    row_of(action).push_back(action);
    const auto backward = [&](int stage) {
      const ActionKind kind = Uniform(0, 2) == 0 ? ActionKind::kBackward : ActionKind::kInputGrad;
      ready.push_back({StageId(stage), kind, action.microbatch});
    };
    const int stage = action.stage.value();
    if (action.kind == ActionKind::kForward) {
      if (stage < last) {
        ready.push_back({StageId(stage + 1), ActionKind::kForward, action.microbatch});
      } else {
        backward(last);
      }
      continue;
    }
    if (action.kind == ActionKind::kInputGrad) {
      ready.push_back({action.stage, ActionKind::kWeightGrad, action.microbatch});
    }
    if (action.kind != ActionKind::kWeightGrad && stage > 0) backward(stage - 1);
  }
  return schedule;
}

Schedule AnySchedule() { return Uniform(0, 2) == 0 ? AnyFamily() : AnyOrder(); }

Costs AnyCosts(int num_stages) {
  const auto by_stage = [&] {
    std::vector<double> costs;
    for (int s = 0; s < num_stages; ++s) costs.push_back(Uniform(0, 50) / 8.0);
    return costs;
  };
  return {.forward = by_stage(),
          .input_grad = by_stage(),
          .weight_grad = by_stage(),
          .backward = by_stage(),
          .latency = Uniform(0, 20) / 8.0};
}

// End of each action if nothing ever waits for a buffer: row order and data dependencies only.
std::vector<double> EndsWithUnlimitedBuffers(const schedule::ActionGraph& graph,
                                             const Costs& costs) {
  std::vector<double> ends(graph.num_actions(), 0);
  for (const ActionNumber number : graph.TopologicalOrder()) {
    const Action& action = graph.At(number);
    double start = graph.PositionOf(number) > 0 ? ends[number - 1] : 0;
    const ActionNumber producer = graph.Producer(action);
    if (producer >= 0) {
      const bool remote = graph.RankOf(producer) != graph.RankOf(number);
      start = std::max(start, ends[producer] + (remote ? costs.latency : 0));
    }
    const int stage = action.stage.value();
    const double duration = action.kind == ActionKind::kForward      ? costs.forward[stage]
                            : action.kind == ActionKind::kInputGrad  ? costs.input_grad[stage]
                            : action.kind == ActionKind::kWeightGrad ? costs.weight_grad[stage]
                                                                     : costs.backward[stage];
    ends[number] = start + duration;
  }
  return ends;
}

RC_GTEST_PROP(LoweredProperty, IsProved, ()) {
  const Schedule schedule = AnySchedule();
  const auto programs = program::Lower(schedule, {.reduce_gradients = Uniform(0, 2) == 0,
                                                  .tied_embeddings = Uniform(0, 2) == 0,
                                                  .optimizer = Uniform(0, 4) != 0});
  RC_ASSERT(programs.ok());
  const absl::Status status = Prove(*programs);
  if (!status.ok()) RC_FAIL(std::string(status.message()));
}

RC_GTEST_PROP(LoweredProperty, RunsAsWithUnlimitedBuffersWhateverTheCosts, ()) {
  const Schedule schedule = AnySchedule();
  const Costs costs = AnyCosts(schedule.num_stages);
  const schedule::ActionGraph graph(schedule);
  const std::vector<double> ends = EndsWithUnlimitedBuffers(graph, costs);
  const auto programs = program::Lower(schedule, {});
  RC_ASSERT(programs.ok());
  const auto report = Simulate(*programs, costs);
  RC_ASSERT(report.ok());
  RC_ASSERT(static_cast<int>(report->events.size()) == graph.num_actions());
  for (int i = 0; i < graph.num_actions(); ++i) RC_ASSERT(report->events[i].end == ends[i]);
}

RC_GTEST_PROP(LoweredProperty, HasNoPoolLargerThanTheMicrobatches, ()) {
  const Schedule schedule = AnySchedule();
  const auto programs = program::Lower(schedule, {});
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
  const Schedule schedule = AnyFamily();
  const auto report = Simulate(program::Lower(schedule, {}).value(), {});
  const int edges = schedule.num_ranks() > 1 ? schedule.num_stages - 1 : 0;
  RC_ASSERT(report->num_messages == std::int64_t{2} * edges * schedule.num_microbatches);
}

RC_GTEST_PROP(LoweredProperty, SplitsIdleTimeWithNothingLeft, ()) {
  const Schedule schedule = AnySchedule();
  const auto report = Simulate(program::Lower(schedule, {}).value(), AnyCosts(schedule.num_stages));
  for (const RankReport& rank : report->ranks) {
    const double idle = rank.warmup_idle + rank.steady_idle + rank.cooldown_idle;
    RC_ASSERT(std::abs(rank.busy + idle - report->makespan) < 1e-9);
  }
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
