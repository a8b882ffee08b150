// SPDX-License-Identifier: Apache-2.0
// Tests on recorded steps that sums of gradients run behind the last backwards: what the simulator
// does not count as part of the critical path does not lengthen the measured step either.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/explain/durations.h"
#include "common/plan/plan.h"
#include "common/sim/simulate.h"
#include "common/trace/timeline.h"
#include "gtest/gtest.h"
#include "tests/testing/virtual_ranks.h"
#include "worker/backend/cpu/cpu_backend.h"

namespace takt::numerics {
namespace {

using Places = std::set<std::pair<int, std::int32_t>>;  // pp rank, index in the body

// Layers that only take time, and have parameters whose gradients two replicas sum.
config::JobSpec JobOf(const char* schedule) {
  config::JobSpec job;
  job.name = "reductions";
  job.model = {.family = model::Family::kEmulated,
               .layers = 8,
               .context = 1,
               .forward_seconds = 3e-3,
               .input_grad_seconds = 3e-3,
               .weight_grad_seconds = 3e-3,
               .activation_bytes = 1024,
               .parameter_bytes = 4 << 20};
  job.global_batch = 8;
  job.steps = 4;
  job.barrier = config::Barrier::kAlways;
  job.parallelism.pipeline = 2;
  job.parallelism.data = 2;
  job.parallelism.threads = 1;
  job.parallelism.schedule = schedule;
  return job;
}

trace::StepTrace TraceOf(Rank rank, const engine::StepTiming& timing) {
  trace::StepTrace trace{.rank = rank, .step = timing.step, .start_nanos = timing.start_nanos};
  for (const engine::InstructionTiming& each : *timing.timings)
    trace.body.push_back({each.start_nanos, each.end_nanos});
  return trace;
}

absl::StatusOr<trace::JobTrace> Record(const config::JobSpec& job, const plan::Plan& plan) {
  trace::JobTrace trace{.job = job.name,
                        .generation = Generation(1),
                        .mesh = plan.mesh,
                        .programs = plan.programs,
                        .predicted = plan.costs};
  trace.ranks.resize(static_cast<std::size_t>(plan.mesh.size()));
  ASSIGN_OR_RETURN(
      const std::unique_ptr<testing::VirtualRanks> ranks,
      testing::VirtualRanks::Create({.job = &job, .plan = &plan, .make_backends = [] {
                                       return backend::CreateCpuBackends({.threads = 1});
                                     }}));
  RETURN_IF_ERROR(ranks->ForAll([&](testing::VirtualRank& rank) -> absl::Status {
    ASSIGN_OR_RETURN(const std::unique_ptr<engine::Engine> engine,
                     rank.MakeEngine(rank.program(), rank.trainer(), "train/"));
    std::vector<trace::StepTrace>& steps =
        trace.ranks[static_cast<std::size_t>(rank.rank().value())].steps;
    return engine->Run(StepId(1), StepId(job.steps), [&](const engine::StepTiming& timing) {
      steps.push_back(TraceOf(rank.rank(), timing));
    });
  }));
  return trace;
}

// Returns the sums of gradients that the simulator hides behind something else.
Places HiddenSums(const plan::Plan& plan) {
  const absl::StatusOr<sim::Report> report = sim::Simulate(plan.programs, plan.costs);
  EXPECT_TRUE(report.ok()) << report.status();
  Places hidden;
  for (const program::Program& program : plan.programs) {
    for (std::size_t i = 0; i < program.body.size(); ++i) {
      if (program.body[i].op == program::Op::kReduceGrad)
        hidden.insert({program.pp_rank.value(), static_cast<std::int32_t>(i)});
    }
  }
  for (const sim::CriticalLink& link : report->critical_path)
    hidden.erase({link.pp_rank, link.instruction});
  return hidden;
}

// Returns how long the step takes if these sums take so long.
double StepTimeWith(const explain::MeasuredStep& step, const mesh::Mesh& mesh, const Places& sums,
                    double seconds) {
  sim::Durations durations = step.usual();
  step.ForEach([&](std::size_t rank, std::size_t i, const program::Instruction&) {
    const int pp_rank = mesh.PpRankOf(Rank(static_cast<std::int32_t>(rank))).value();
    if (sums.contains({pp_rank, static_cast<std::int32_t>(i)})) durations[rank][i] = seconds;
  });
  return step.StepTime(durations);
}

// At least one of several steps is not disturbed by other work of the machine.
TEST(Reductions, ThatTheSimulatorHidesLengthenNoRecordedStep) {
  for (const char* const schedule : {"1f1b", "interleaved-1f1b", "zb-h1", "zb-v"}) {
    SCOPED_TRACE(schedule);
    const config::JobSpec job = JobOf(schedule);
    const absl::StatusOr<plan::Plan> plan = plan::MakePlan(job, {.max_workers = 4});
    ASSERT_TRUE(plan.ok()) << plan.status();
    const Places hidden = HiddenSums(*plan);
    ASSERT_FALSE(hidden.empty());
    const absl::StatusOr<trace::JobTrace> trace = Record(job, *plan);
    ASSERT_TRUE(trace.ok()) << trace.status();
    const absl::StatusOr<trace::Timeline> timeline = trace::MakeTimeline(*trace);
    ASSERT_TRUE(timeline.ok()) << timeline.status();
    double least_share = 1;  // of a step that these sums take
    for (StepId id(2); id.value() <= job.steps; ++id) {
      const auto step = explain::MeasuredStep::Create(*timeline, id);
      ASSERT_TRUE(step.ok()) << step.status();
      const double measured = step->StepTime(step->usual());
      const double without = StepTimeWith(*step, plan->mesh, hidden, 0);
      least_share = std::min(least_share, 1 - without / measured);
      // A sum as long as the whole step is hidden by nothing.
      EXPECT_GT(StepTimeWith(*step, plan->mesh, hidden, measured), measured);
    }
    EXPECT_LT(least_share, 0.02);
  }
}

}  // namespace
}  // namespace takt::numerics
