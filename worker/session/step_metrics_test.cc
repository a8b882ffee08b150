// SPDX-License-Identifier: Apache-2.0
#include "worker/session/step_metrics.h"

#include <algorithm>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "common/program/lowering.h"
#include "common/program/remove_barrier.h"
#include "common/sim/testing/program_edit.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::session {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kMillisecond = 1'000'000;

// Stage 1 of two: F of two microbatches that come from pp rank 0, then B, and the gradients sent
// back.
program::Program LastOfTwo() { return sim::Programs("gpipe", 2, 2, {})[1]; }

constexpr mesh::Coordinates kPlace{
    .pp = PpRank(1), .dp = DpRank(2), .cp = CpRank(3), .tp = TpRank(4)};

class StepMetricsTest : public ::testing::Test {
 protected:
  // Sets the times of the instruction that prints as `text`. The others have length 0.
  void Set(const char* text, std::int64_t start, std::int64_t end) {
    timings_[sim::IndexOf(program_, text)] = {start, end};
  }
  std::string TextAfter(int steps) {
    metrics::Registry registry;
    StepMetrics metrics(registry, "kjv", kPlace, program_);
    for (int i = 0; i < steps; ++i) metrics.Record(timings_);
    return registry.Text();
  }

  program::Program program_ = LastOfTwo();
  std::vector<engine::InstructionTiming> timings_{program_.body.size()};
};

TEST_F(StepMetricsTest, InstructionsAreCountedByStageAndKind) {
  Set("1F0", 0, 5 * kMillisecond);
  Set("1F1", 0, 50 * kMillisecond);
  const std::string text = TextAfter(2);
  EXPECT_THAT(text,
              HasSubstr("takt_op_duration_seconds_count{job=\"kjv\",kind=\"F\",stage=\"1\"} 4"));
  EXPECT_THAT(text,
              HasSubstr("takt_op_duration_seconds_sum{job=\"kjv\",kind=\"F\",stage=\"1\"} 0.11"));
  // 5 ms is at most 6.4 ms and above 3.2 ms
  EXPECT_THAT(text, HasSubstr("kind=\"F\",stage=\"1\",le=\"0.0064\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("kind=\"F\",stage=\"1\",le=\"0.0032\"} 0\n"));
}

TEST_F(StepMetricsTest, TellsHowExpertsAreLoaded) {
  metrics::Registry registry;
  StepMetrics metrics(registry, "kjv", kPlace, program_);
  metrics.RecordExperts({{.block = 3, .max_over_mean = 1.5, .entropy = 0.75, .dropped = 0},
                         {.block = 4, .max_over_mean = 8, .entropy = 0, .dropped = 2}});
  metrics.RecordExperts({{.block = 4, .max_over_mean = 4, .entropy = 0.25, .dropped = 1}});
  const std::string text = registry.Text();
  EXPECT_THAT(text, HasSubstr("takt_expert_load_ratio{block=\"3\",job=\"kjv\"} 1.5\n"));
  EXPECT_THAT(text, HasSubstr("takt_expert_entropy_ratio{block=\"3\",job=\"kjv\"} 0.75\n"));
  EXPECT_THAT(text, HasSubstr("takt_expert_dropped_total{block=\"3\",job=\"kjv\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("takt_expert_load_ratio{block=\"4\",job=\"kjv\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("takt_expert_dropped_total{block=\"4\",job=\"kjv\"} 3\n"));
}

TEST_F(StepMetricsTest, CountsStepsThatWereUndoneOrHeld) {
  EXPECT_THAT(TextAfter(1), ::testing::Not(HasSubstr("takt_undone")));
  program_ = program::RemoveBarrier(sim::Programs("1f1b", 2, 4, {})).value()[1];
  metrics::Registry registry;
  StepMetrics metrics(registry, "kjv", kPlace, program_);
  const std::vector<engine::InstructionTiming> prologue = {{30 * kMillisecond, 50 * kMillisecond}};
  metrics.RecordOverlap({.undone = true}, {.start_nanos = 0, .prologue = &prologue});
  metrics.RecordOverlap({.held = true},
                        {.start_nanos = 25 * kMillisecond, .prologue = &prologue, .redone = true});
  metrics.RecordOverlap({.held = true}, {});
  const std::string text = registry.Text();
  EXPECT_THAT(text, HasSubstr("takt_undone_steps_total{job=\"kjv\",pp_rank=\"1\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("takt_held_steps_total{job=\"kjv\",pp_rank=\"1\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("takt_undone_seconds_total{job=\"kjv\",pp_rank=\"1\"} 0.025\n"));
}

TEST_F(StepMetricsTest, AWeightGradOfSeveralMicrobatchesCountsAsSoMany) {
  program_ = sim::Programs("zb-h2", 4, 8, {.merge_weight_grads = true})[3];
  timings_.assign(program_.body.size(), {});
  Set("3W1-7", 0, 35 * kMillisecond);
  const std::string text = TextAfter(1);
  EXPECT_THAT(text,
              HasSubstr("takt_op_duration_seconds_count{job=\"kjv\",kind=\"W\",stage=\"3\"} 8\n"));
  EXPECT_THAT(
      text, HasSubstr("takt_op_duration_seconds_sum{job=\"kjv\",kind=\"W\",stage=\"3\"} 0.035\n"));
  // Seven take 5 ms, and one has length 0.
  EXPECT_THAT(text, HasSubstr("kind=\"W\",stage=\"3\",le=\"0.0064\"} 8\n"));
  EXPECT_THAT(text, HasSubstr("kind=\"W\",stage=\"3\",le=\"0.0032\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("takt_in_flight_microbatches{job=\"kjv\",stage=\"3\"} 7\n"));
}

TEST_F(StepMetricsTest, SaysWhichRankThisIsAndWhatItHolds) {
  const std::string text = TextAfter(0);
  EXPECT_THAT(text, HasSubstr("takt_rank_info{cp_rank=\"3\",dp_rank=\"2\",job=\"kjv\","
                              "pp_rank=\"1\",tp_rank=\"4\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("takt_in_flight_microbatches{job=\"kjv\",stage=\"1\"} 2\n"));
}

TEST_F(StepMetricsTest, BytesAreThoseOfSentMessages) {
  for (program::Slot& slot : program_.slots) slot.bytes = 4096;
  const std::string text = TextAfter(3);
  EXPECT_THAT(text, HasSubstr("takt_p2p_bytes_total{direction=\"gradient\",job=\"kjv\","
                              "pp_rank=\"1\"} 24576\n"));
  EXPECT_THAT(text, HasSubstr("takt_p2p_bytes_total{direction=\"activation\",job=\"kjv\","
                              "pp_rank=\"1\"} 0\n"));
}

TEST_F(StepMetricsTest, AWaitIsWhatAMessageTookAfterTheInstructionBefore) {
  for (engine::InstructionTiming& timing : timings_)
    timing = {100 * kMillisecond, 100 * kMillisecond};
  Set("0RECV_F1", 1 * kMillisecond, 8 * kMillisecond);  // asked for at once, arrives at 8 ms
  Set("1F0", 2 * kMillisecond, 5 * kMillisecond);
  Set("1F1", 8 * kMillisecond, 11 * kMillisecond);
  Set("0RECV_F0", 1 * kMillisecond, 2 * kMillisecond);
  const std::string text = TextAfter(1);
  // The rank waits until 2 ms for the first message, and from 5 to 8 ms for the second.
  EXPECT_THAT(text, HasSubstr("takt_p2p_wait_seconds_total{direction=\"activation\",job=\"kjv\","
                              "pp_rank=\"1\"} 0.004\n"));
}

TEST_F(StepMetricsTest, StaysWithinTheBoundOnSeries) {
  for (const char* family : {"1f1b", "zb-h1", "interleaved-1f1b"}) {
    const std::vector<program::Program> programs = sim::Programs(family, 4, 8, {});
    const metrics::JobShape shape{.stages = programs[0].num_stages, .pp_ranks = 4, .dp_ranks = 1};
    std::map<std::string_view, int> series;  // over all targets
    for (const program::Program& program : programs) {
      metrics::Registry registry;
      StepMetrics metrics(registry, "j", {}, program);
      const std::vector<std::string> lines = absl::StrSplit(registry.Text(), '\n');
      for (const metrics::Metric* metric : metrics::AllMetrics()) {
        if (!metric->of_job() || metric->source != metrics::Source::kWorker) continue;
        series[metric->name] += std::ranges::count_if(lines, [&](const std::string& line) {
          return absl::StartsWith(line, std::string(metric->name));
        });
      }
    }
    for (const metrics::Metric* metric : metrics::AllMetrics()) {
      if (!metric->of_job() || metric->source != metrics::Source::kWorker) continue;
      // These are not of every job's steps; memory_copies_test, fp8_metrics_test,
      // TellsHowExpertsAreLoaded and CountsStepsThatWereUndoneOrHeld look at them.
      if (metric == &metrics::kMemoryCopies || metric == &metrics::kMemoryCopyStep ||
          metric == &metrics::kFp8Overflows || metric == &metrics::kFp8Underflows ||
          metric == &metrics::kExpertLoad || metric == &metrics::kExpertEntropy ||
          metric == &metrics::kExpertDropped || metric == &metrics::kUndoneSteps ||
          metric == &metrics::kHeldSteps || metric == &metrics::kUndoneSeconds) {
        continue;
      }
      EXPECT_GT(series[metric->name], 0) << metric->name;
      EXPECT_LE(series[metric->name], metrics::MostSeriesPerJob(*metric, shape)) << metric->name;
    }
  }
}

}  // namespace
}  // namespace takt::session
