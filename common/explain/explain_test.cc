// SPDX-License-Identifier: Apache-2.0
#include "common/explain/explain.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "common/cost/costs.h"
#include "common/explain/durations.h"
#include "common/explain/text.h"
#include "common/program/remove_barrier.h"
#include "common/sim/simulate.h"
#include "common/trace/testing/synthetic_trace.h"
#include "gmock/gmock.h"
#include "rapidcheck/gtest.h"

namespace takt::explain {
namespace {

using program::Op;
using ::testing::HasSubstr;
using trace::SyntheticOptions;
using trace::SyntheticTrace;

double Of(const Parts& parts, Part part) { return parts[static_cast<int>(part)]; }
double Sum(const Parts& parts) { return std::accumulate(parts.begin(), parts.end(), 0.0); }

Explanation ExplainStep(SyntheticTrace& synthetic, int step = 2) {
  const trace::JobTrace& trace = synthetic.Get();
  return Explain(trace::MakeTimeline(trace).value(), StepId(step)).value();
}

// Only compute takes time.
constexpr SyntheticOptions kFree{.message = 0, .load = 0, .reduction = 0, .exchange = 0, .norm = 0};

using Place = std::pair<int, std::int32_t>;  // pp rank, index in the body

// Returns the sums of gradients that are not part of the simulated critical path.
std::set<Place> HiddenSums(const std::vector<program::Program>& programs,
                           const cost::Costs& costs) {
  std::set<Place> hidden;
  for (const program::Program& program : programs) {
    for (std::size_t i = 0; i < program.body.size(); ++i) {
      if (program.body[i].op == Op::kReduceGrad)
        hidden.insert({program.pp_rank.value(), static_cast<std::int32_t>(i)});
    }
  }
  const sim::Report report = sim::Simulate(programs, costs).value();
  for (const sim::CriticalLink& link : report.critical_path)
    hidden.erase({link.pp_rank, link.instruction});
  return hidden;
}

// Returns how long the step takes if these sums take so long.
double StepTimeWith(const MeasuredStep& step, const mesh::Mesh& mesh, const std::set<Place>& sums,
                    double seconds) {
  sim::Durations durations = step.usual();
  step.ForEach([&](std::size_t rank, std::size_t i, const program::Instruction&) {
    const int pp_rank = mesh.PpRankOf(Rank(static_cast<std::int32_t>(rank))).value();
    if (sums.contains({pp_rank, static_cast<std::int32_t>(i)})) durations[rank][i] = seconds;
  });
  return step.StepTime(durations);
}

constexpr const char* kFamilies[] = {"naive", "gpipe",      "1f1b",    "interleaved-1f1b", "zb-h1",
                                     "zb-v",  "dualpipe-v", "chimera", "pipedream-2bw"};

// ---- steps that overlap

TEST(Explain, NamesWhatRanAgainBecauseTheStepBeforeWasClipped) {
  SyntheticTrace synthetic(program::RemoveBarrier(sim::Programs("1f1b", 2, 4, {})).value(), {});
  synthetic.AddStep();
  synthetic.AddStep(/*pause=*/0.02);
  EXPECT_EQ(ExplainStep(synthetic).redone_seconds, 0);
  EXPECT_EQ(ExplainStep(synthetic).undone->steps, 0);
  EXPECT_THAT(ToString(ExplainStep(synthetic), {}), HasSubstr("recorded step, none was undone\n"));
  for (trace::RankTrace& rank : synthetic.Get().ranks) {
    std::int64_t& start = rank.steps[1].start_nanos;
    start = 0;
    for (const trace::Span& span : rank.steps[0].body) start = std::max(start, span.end_nanos);
  }
  const Explanation explanation = ExplainStep(synthetic);
  EXPECT_GE(explanation.redone_seconds, 0.0199);
  EXPECT_THAT(ToString(explanation, {}), HasSubstr("step 1 was clipped"));
  ASSERT_TRUE(explanation.undone.has_value());
  EXPECT_EQ(explanation.undone->steps, 1);
  EXPECT_EQ(explanation.undone->of, 1);
  EXPECT_EQ(explanation.undone->seconds, explanation.redone_seconds);
  EXPECT_THAT(ToString(explanation, {}), HasSubstr("of 1 recorded step, 1 was undone: "));
}

// ---- exactness

RC_GTEST_PROP(Explain, PartsAddUpToTheMeasuredStep, ()) {
  const char* family =
      *rc::gen::elementOf(std::vector<const char*>(std::begin(kFamilies), std::end(kFamilies)));
  const int dp_size = *rc::gen::inRange(1, 3);
  SyntheticTrace synthetic(family, 4, 8, {.dp_size = dp_size});
  for (int rank = 0; rank < static_cast<int>(synthetic.spread().size()); ++rank) {
    synthetic.Slow(rank, Op::kForward, *rc::gen::inRange(50, 200) / 100.0);
    synthetic.Slow(rank, Op::kWeightGrad, *rc::gen::inRange(50, 200) / 100.0);
    synthetic.Slow(rank, Op::kRecv, *rc::gen::inRange(0, 5000) / 100.0);
    synthetic.Slow(rank, Op::kLoad, *rc::gen::inRange(0, 5000) / 100.0);
  }
  trace::JobTrace& trace = synthetic.Get();
  // Whatever else happened may give times that no program would have had.
  for (trace::RankTrace& rank : trace.ranks) {
    for (trace::Span& span : rank.steps[1].body) {
      span.end_nanos += *rc::gen::inRange(0, 3'000'000);
    }
  }
  const trace::Timeline timeline = trace::MakeTimeline(trace).value();
  const Explanation explanation = Explain(timeline, StepId(2)).value();
  const double step =
      static_cast<double>(timeline.steps[1].end_nanos - timeline.steps[1].start_nanos) * 1e-9;
  RC_ASSERT(std::abs(explanation.step_seconds - step) <= 1e-12);
  RC_ASSERT(std::abs(Sum(explanation.parts) - step) <= 1e-9 * step);
  for (const RankSplit& rank : explanation.ranks) {
    RC_ASSERT(std::abs(Sum(rank.parts) - step) <= 1e-9 * step);
  }
  RC_ASSERT(Of(explanation.parts, Part::kSchedule) >= -1e-9 * step);
}

TEST(Explain, ARankIsBusyOrIdleForAReason) {
  for (const char* family : {"1f1b", "zb-v", "dualpipe-v"}) {
    SyntheticTrace synthetic(family, 4, 8);
    const Explanation explanation = ExplainStep(synthetic);
    for (const RankSplit& rank : explanation.ranks) {
      const double idle = std::accumulate(rank.idle_seconds.begin(), rank.idle_seconds.end(), 0.0);
      EXPECT_NEAR(rank.busy_seconds + idle, explanation.step_seconds, 1e-7) << family;
    }
  }
}

// ---- undisturbed

TEST(Explain, AnUndisturbedStepIsComputeAndSchedule) {
  for (const char* family : kFamilies) {
    SCOPED_TRACE(family);
    SyntheticTrace synthetic(family, 4, 8, kFree);
    const Explanation explanation = ExplainStep(synthetic);
    for (const Part part :
         {Part::kImbalance, Part::kCommunication, Part::kData, Part::kSync, Part::kRuntime}) {
      EXPECT_NEAR(Of(explanation.parts, part), 0, 1e-3 * explanation.step_seconds) << Name(part);
    }
    EXPECT_FALSE(explanation.worst_op.has_value());
    if (explanation.predicted_step_seconds.has_value()) {
      EXPECT_NEAR(*explanation.predicted_step_seconds + kFree.optimizer, explanation.step_seconds,
                  1e-5);
    }
  }
}

// Stage 0 has no B outside of pairs, and the time of a pair is known only as a whole.
TEST(Explain, HalvesOfAPairTakeTheirPartsOfItsTime) {
  for (const char* const family : {"dualpipe", "dualpipe-v"}) {
    SyntheticOptions options = kFree;
    options.forward = 0.03;
    SyntheticTrace synthetic(family, 4, 8, options);
    const Explanation explanation = ExplainStep(synthetic);
    EXPECT_NEAR(Of(explanation.parts, Part::kRuntime), 0, 1e-5);
    EXPECT_NEAR(Of(explanation.parts, Part::kImbalance), 0, 1e-5);
  }
}

TEST(Explain, MeetingsInsideHalvesAreCommunication) {
  for (const bool beside : {true, false}) {
    SyntheticOptions options = kFree;
    options.tp_size = 2;
    options.meeting = 2e-3;
    options.halves_run_beside = beside;
    SyntheticTrace synthetic("dualpipe-v", 2, 4, options);
    const Explanation explanation = ExplainStep(synthetic);
    EXPECT_NEAR(Of(explanation.parts, Part::kRuntime), 0, 1e-5) << beside;
    // Each rank runs eight F, which gather once.
    EXPECT_GE(Of(explanation.parts, Part::kCommunication), 8 * 2e-3 - 1e-6) << beside;
  }
}

// The parts are as if the steps had come one after the other.
TEST(Explain, AWeightGradOfSeveralMicrobatchesIsSoMuchWork) {
  const auto explain = [](bool merge) {
    SyntheticOptions options = kFree;
    options.merge_weight_grads = merge;
    SyntheticTrace synthetic("zb-h2", 4, 8, options);
    synthetic.Slow(2, Op::kWeightGrad, 1.5);
    return ExplainStep(synthetic);
  };
  const Explanation apart = explain(false), merged = explain(true);
  for (std::size_t part = 0; part < apart.parts.size(); ++part)
    EXPECT_NEAR(merged.parts[part], apart.parts[part], 1e-7) << part;
  ASSERT_TRUE(merged.worst_op.has_value());
  EXPECT_EQ(merged.worst_op->rank, 2);
  EXPECT_EQ(merged.worst_op->op, Op::kWeightGrad);
  EXPECT_NEAR(merged.worst_op->seconds, 0.015, 1e-7);
  EXPECT_NEAR(merged.worst_op->mean_seconds, apart.worst_op->mean_seconds, 1e-7);
}

TEST(Explain, TheScheduleOfEqualStagesIsItsKnownBubble) {
  SyntheticOptions options = kFree;
  options.optimizer = 0;
  SyntheticTrace synthetic("1f1b", 4, 8, options);
  const Explanation explanation = ExplainStep(synthetic);
  EXPECT_NEAR(explanation.step_seconds, 0.33, 1e-6);
  EXPECT_NEAR(Of(explanation.parts, Part::kCompute), 0.24, 1e-6);
  EXPECT_NEAR(Of(explanation.parts, Part::kSchedule), 0.09, 1e-6);
  EXPECT_NEAR(explanation.bubble_fraction, 3.0 / 11, 1e-6);
  EXPECT_NEAR(*explanation.predicted_bubble_fraction, 3.0 / 11, 1e-2);
}

// ---- planted causes: what it adds to the step lands in its part

struct Planted {
  double added = 0;      // to the step
  double explained = 0;  // of that, in the part
  Explanation after;
};

Planted Plant(const SyntheticOptions& options, Part part, auto disturb) {
  SyntheticTrace healthy("1f1b", 4, 8, options);
  const Explanation before = ExplainStep(healthy);
  SyntheticTrace disturbed("1f1b", 4, 8, options);
  disturb(disturbed);
  Planted planted{.after = ExplainStep(disturbed)};
  planted.added = planted.after.step_seconds - before.step_seconds;
  planted.explained = Of(planted.after.parts, part) - Of(before.parts, part);
  return planted;
}

TEST(Explain, ASlowStageIsImbalanceButForItsShareOfTheWork) {
  const Planted planted = Plant({}, Part::kImbalance, [](SyntheticTrace& trace) {
    for (const Op op : {Op::kForward, Op::kBackward}) trace.Slow(2, op, 1.3);
  });
  EXPECT_GT(planted.added, 0.06);
  // The mean of four stages is 30 % / 4 higher, for the work and for the bubble with it.
  const double of_mean = 0.3 / 4 * (0.24 + 0.09);
  EXPECT_NEAR(planted.explained, planted.added - of_mean, 0.02 * planted.added);
  ASSERT_TRUE(planted.after.worst_op.has_value());
  EXPECT_EQ(planted.after.worst_op->rank, 2);
  EXPECT_EQ(planted.after.worst_op->stage, StageId(2));
  EXPECT_EQ(planted.after.worst_op->op, Op::kBackward);
  EXPECT_NEAR(planted.after.worst_op->seconds, 0.026, 1e-6);
  EXPECT_NEAR(planted.after.worst_op->mean_seconds, 0.0215, 1e-6);
  // Its own row tells which rank it is.
  EXPECT_LT(Of(planted.after.ranks[2].parts, Part::kImbalance), 0.01);
  EXPECT_GT(Of(planted.after.ranks[0].parts, Part::kImbalance), 0.05);
}

TEST(Explain, ALateLinkIsCommunication) {
  const Planted planted =
      Plant({}, Part::kCommunication, [](SyntheticTrace& trace) { trace.Delay(1, 2, 0.020); });
  EXPECT_GT(planted.added, 0.020);
  EXPECT_NEAR(planted.explained, planted.added, 0.02 * planted.added);
  ASSERT_TRUE(planted.after.worst_link.has_value());
  EXPECT_EQ(planted.after.worst_link->from, 1);
  EXPECT_EQ(planted.after.worst_link->to, 2);
  EXPECT_NEAR(planted.after.worst_link->seconds, 0.02005, 1e-6);
  EXPECT_NEAR(planted.after.worst_link->others_seconds, 50e-6, 1e-6);
}

TEST(Explain, SlowDataIsData) {
  const Planted planted =
      Plant({}, Part::kData, [](SyntheticTrace& trace) { trace.Duration(0, "LOAD") = 0.05; });
  EXPECT_GT(planted.added, 0.04);
  EXPECT_NEAR(planted.explained, planted.added, 0.02 * planted.added);
}

TEST(Explain, SlowSumsAreSync) {
  const Planted planted = Plant({.dp_size = 2}, Part::kSync, [](SyntheticTrace& trace) {
    for (int rank = 0; rank < 8; ++rank) trace.Slow(rank, Op::kReduceGrad, 100);
  });
  EXPECT_GT(planted.added, 0.015);
  EXPECT_NEAR(planted.explained, planted.added, 0.02 * planted.added);
}

// Rank 2 stands still for 100 ms before `instruction` of step 3 ends, and none of its instructions
// ends meanwhile.
Explanation ExplainStopIn(std::size_t instruction, double& usual) {
  constexpr double kStop = 0.1;
  constexpr int kRank = 2;
  SyntheticTrace synthetic("1f1b", 4, 8);
  synthetic.AddStep();
  synthetic.AddStep();
  usual = ExplainStep(synthetic, 2).step_seconds;
  const std::string where =
      ToString(synthetic.spread()[kRank].body[instruction], synthetic.spread()[kRank]);
  const bool is_sum = WorkOf(synthetic.spread()[kRank].body[instruction]) == Work::kSum;
  for (int rank = 0; rank < 4; ++rank) {
    // A sum ends on all ranks at once.
    if (rank == kRank || is_sum) synthetic.Duration(rank, where) += kStop;
  }
  synthetic.AddStep();
  trace::StepTrace& step = synthetic.Get().ranks[kRank].steps[2];
  const std::int64_t end = step.body[instruction].end_nanos;
  step.stalls = {{end - static_cast<std::int64_t>(kStop * 1e9), end}};
  for (trace::Span& span : step.body) {
    if (span.end_nanos > step.stalls[0].start_nanos && span.end_nanos < end) span.end_nanos = end;
  }
  return ExplainStep(synthetic, 3);
}

TEST(Explain, ARankThatStoodStillIsRuntimeWhateverItDidOrWaitedFor) {
  SyntheticTrace synthetic("1f1b", 4, 8);
  const program::Program& program = synthetic.spread()[2];
  for (std::size_t i = 0; i < program.body.size(); ++i) {
    // The receiver tells when the message ends.
    if (program.body[i].op == Op::kSend) continue;
    SCOPED_TRACE(ToString(program.body[i], program));
    double usual = 0;
    const Explanation explanation = ExplainStopIn(i, usual);
    const double lost = explanation.step_seconds - usual;
    EXPECT_NEAR(Sum(explanation.parts), explanation.step_seconds, 1e-9);
    EXPECT_NEAR(Of(explanation.parts, Part::kRuntime), lost, 0.03 * 0.1);
    EXPECT_EQ(explanation.ranks[1].stalled_seconds, 0);
    EXPECT_NEAR(explanation.ranks[2].stalled_seconds, 0.1, 0.02);
  }
}

TEST(Explain, TheEnginesOwnDelaysAreRuntime) {
  SyntheticTrace synthetic("naive", 1, 2);
  trace::JobTrace& trace = synthetic.Get();
  const std::size_t second = sim::IndexOf(trace.programs[0], "0F1");
  std::vector<trace::Span>& body = trace.ranks[0].steps[1].body;
  const std::int64_t from = body[second].start_nanos;
  for (trace::Span& span : body) {
    if (span.start_nanos < from) continue;
    span.start_nanos += 5'000'000;
    span.end_nanos += 5'000'000;
  }
  const Explanation explanation = ExplainStep(synthetic);
  EXPECT_NEAR(Of(explanation.parts, Part::kRuntime), 0.005, 1e-6);
  EXPECT_NEAR(explanation.ranks[0].idle_seconds[static_cast<int>(trace::Cause::kRuntime)], 0.005,
              1e-6);
}

TEST(Explain, SumsThatTheSimulatorHidesDoNotLengthenTheStep) {
  for (const char* const family : {"1f1b", "interleaved-1f1b", "zb-h1", "zb-v"}) {
    SCOPED_TRACE(family);
    SyntheticOptions options{.dp_size = 2};
    options.reduction = 0.5 * options.forward;
    SyntheticTrace synthetic(family, 2, 8, options);
    const trace::JobTrace& trace = synthetic.Get();
    cost::Costs costs = trace.predicted;
    costs.reduction = {options.reduction};
    const std::set<Place> hidden = HiddenSums(trace.programs, costs);
    ASSERT_FALSE(hidden.empty());
    const trace::Timeline timeline = trace::MakeTimeline(trace).value();
    const MeasuredStep step = MeasuredStep::Create(timeline, StepId(2)).value();
    const double measured = step.StepTime(step.usual());
    EXPECT_NEAR(StepTimeWith(step, trace.mesh, hidden, 0), measured, 1e-6);
    // Nothing hides a sum as long as the whole step.
    EXPECT_GT(StepTimeWith(step, trace.mesh, hidden, measured), 1.1 * measured);
  }
}

TEST(Explain, SaysWhichStepsThereAre) {
  SyntheticTrace synthetic("1f1b", 2, 2);
  const auto explanation = Explain(trace::MakeTimeline(synthetic.Get()).value(), StepId(9));
  EXPECT_EQ(explanation.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(explanation.status().message()),
              HasSubstr("is not in the trace: the last that is: 2;"));
}

TEST(Explain, MeetingsOfRanksThatShareLayersAreCommunication) {
  SyntheticOptions options = kFree;
  options.tp_size = 2;
  options.meeting = 2e-3;
  SyntheticTrace synthetic("gpipe", 1, 4, options);
  const Explanation even = ExplainStep(synthetic);
  EXPECT_NEAR(Of(even.parts, Part::kCommunication), 4 * 2e-3, 1e-6);
  EXPECT_NEAR(Of(even.parts, Part::kImbalance), 0, 1e-6);
  EXPECT_NEAR(Sum(even.parts), even.step_seconds, 1e-9);
  EXPECT_NEAR(even.ranks[0].busy_seconds, Of(even.parts, Part::kCompute), 1e-6);

  // A rank that waits for a slower one in a meeting is out of balance.
  synthetic.Slow(1, Op::kForward, 2);
  synthetic.AddStep();
  synthetic.AddStep();
  synthetic.AddStep();
  const Explanation uneven = ExplainStep(synthetic, 5);
  EXPECT_NEAR(Of(uneven.parts, Part::kCommunication), 4 * 2e-3, 1e-6);
  EXPECT_NEAR(Of(uneven.parts, Part::kImbalance), 4 * 0.010 / 2, 1e-6);
  EXPECT_NEAR(uneven.ranks[0].idle_seconds[static_cast<int>(trace::Cause::kPeer)], 4 * 0.010, 1e-6);
}

}  // namespace
}  // namespace takt::explain
