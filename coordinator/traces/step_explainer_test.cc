// SPDX-License-Identifier: Apache-2.0
#include "coordinator/traces/step_explainer.h"

#include <numeric>

#include "common/trace/testing/synthetic_trace.h"
#include "coordinator/traces/recent_steps.h"
#include "gmock/gmock.h"

namespace takt::traces {
namespace {

using ::testing::ElementsAre;

std::vector<std::int64_t> StepsOf(const trace::RankTrace& rank) {
  std::vector<std::int64_t> steps;
  for (const trace::StepTrace& step : rank.steps) steps.push_back(step.step.value());
  return steps;
}

trace::StepTrace StepOf(int rank, int step) {
  return {.rank = Rank(rank), .step = StepId(step), .body = {{0, 1}, {1, 2}}};
}

TEST(RecentSteps, GivesTheNewestThatAllRanksToldOf) {
  RecentSteps recent(2, 1 << 20);
  EXPECT_EQ(recent.newest_complete(), StepId(0));
  for (const int step : {1, 2, 4}) recent.Add(StepOf(0, step), {});
  for (const int step : {2, 3, 4}) recent.Add(StepOf(1, step), {.offset_nanos = step});
  recent.Add(StepOf(1, 4), {.offset_nanos = 9});  // told again
  EXPECT_EQ(recent.newest_complete(), StepId(4));
  EXPECT_THAT(StepsOf(recent.Newest(9)[0]), ElementsAre(2, 4));
  EXPECT_THAT(StepsOf(recent.Newest(1)[1]), ElementsAre(4));
  EXPECT_EQ(recent.Newest(1)[1].clock.offset_nanos, 9);
}

TEST(RecentSteps, StaysWithinItsBytes) {
  RecentSteps recent(1, 4 * (sizeof(trace::StepTrace) + 2 * sizeof(trace::Span)));
  for (int step = 1; step <= 100; ++step) recent.Add(StepOf(0, step), {});
  EXPECT_THAT(StepsOf(recent.Newest(100)[0]), ElementsAre(97, 98, 99, 100));
}

TEST(SplitNewest, AddsUpAndNamesComputeAndIdleTimeOfEachPpRank) {
  trace::SyntheticTrace synthetic("1f1b", 4, 8, {.num_steps = 5});
  const job::StepSplit split = SplitNewest(synthetic.Get()).value();
  EXPECT_EQ(split.step, StepId(5));
  EXPECT_NEAR(std::accumulate(split.parts.begin(), split.parts.end(), 0.0), split.step_seconds,
              1e-9);
  ASSERT_EQ(split.pp_ranks.size(), 4u);
  for (const job::PpRankSplit& rank : split.pp_ranks) {
    const double idle = std::accumulate(rank.idle_seconds.begin(), rank.idle_seconds.end(), 0.0);
    EXPECT_GT(rank.compute_seconds, 0);
    EXPECT_GT(rank.predicted_compute_seconds, 0);
    // Norms and the optimizer count in neither.
    EXPECT_LE(rank.compute_seconds + idle, split.step_seconds + 1e-9);
    EXPECT_GT(rank.compute_seconds + idle, 0.9 * split.step_seconds);
  }
}

TEST(SplitNewest, AMeetingInsideAnInstructionIsIdleTimeAlone) {
  trace::SyntheticTrace synthetic("gpipe", 1, 4, {.tp_size = 2, .num_steps = 2, .meeting = 2e-3});
  const job::StepSplit split = SplitNewest(synthetic.Get()).value();
  const job::PpRankSplit& rank = split.pp_ranks.at(0);
  const double idle = std::accumulate(rank.idle_seconds.begin(), rank.idle_seconds.end(), 0.0);
  // F, I and W take 10 ms each, and every F has a meeting.
  EXPECT_NEAR(rank.compute_seconds, 4 * 30e-3, 1e-6);
  EXPECT_GE(idle, 4 * 2e-3 - 1e-6);
  EXPECT_LE(rank.compute_seconds + idle, split.step_seconds + 1e-9);
}

}  // namespace
}  // namespace takt::traces
