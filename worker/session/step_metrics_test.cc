// SPDX-License-Identifier: Apache-2.0
#include "worker/session/step_metrics.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::session {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Two forwards of stage 1 and the send of one of them.
program::Program TwoForwardsAndASend() {
  program::Program program{
      .pp_rank = PpRank(1), .pp_size = 2, .num_stages = 2, .num_microbatches = 2};
  program.lanes = {{.kind = program::LaneKind::kCompute},
                   {.kind = program::LaneKind::kSend,
                    .peer = PpRank(0),
                    .direction = program::Direction::kActivation}};
  program.slots = {{.kind = program::SlotKind::kOutput, .stage = StageId(1), .bytes = 4096}};
  program.body = {
      {.op = program::Op::kForward, .lane = LaneId(0), .stage = StageId(1)},
      {.op = program::Op::kForward, .lane = LaneId(0), .stage = StageId(1)},
      {.op = program::Op::kSend, .lane = LaneId(1), .stage = StageId(1), .reads = {SlotId(0)}}};
  return program;
}

std::string AfterTwoSteps(Rank rank) {
  metrics::Registry registry;
  StepMetrics metrics(registry, "kjv", rank, TwoForwardsAndASend());
  // 5 ms, 50 ms, 150 us
  const std::vector<engine::InstructionTiming> timings = {
      {0, 5'000'000}, {5'000'000, 55'000'000}, {5'000'000, 5'150'000}};
  const engine::StepTiming timing{.timings = &timings};
  const StepReport report{
      .rank = rank, .step_seconds = 0.1, .busy_seconds = 0.075, .loss = 2.5, .tokens = 64};
  metrics.Record(timing, report, absl::UnixEpoch() + absl::Seconds(7));
  metrics.Record(timing, report, absl::UnixEpoch() + absl::Seconds(8));
  return registry.Text();
}

TEST(StepMetrics, InstructionsAreCountedByStageAndKind) {
  const std::string text = AfterTwoSteps(Rank(1));
  EXPECT_THAT(text,
              HasSubstr("takt_op_duration_seconds_count{job=\"kjv\",kind=\"F\",stage=\"1\"} 4"));
  EXPECT_THAT(text,
              HasSubstr("takt_op_duration_seconds_sum{job=\"kjv\",kind=\"F\",stage=\"1\"} 0.11"));
  // 5 ms is at most 6.4 ms and above 3.2 ms
  EXPECT_THAT(text, HasSubstr("kind=\"F\",stage=\"1\",le=\"0.0064\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("kind=\"F\",stage=\"1\",le=\"0.0032\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("kind=\"SEND\",stage=\"1\",le=\"0.0002\"} 2\n"));
}

TEST(StepMetrics, StepsBubbleAndBytes) {
  const std::string text = AfterTwoSteps(Rank(1));
  EXPECT_THAT(text, HasSubstr("takt_step_duration_seconds_count{job=\"kjv\"} 2"));
  EXPECT_THAT(text, HasSubstr("takt_bubble_fraction{job=\"kjv\",pp_rank=\"1\"} 0.25"));
  EXPECT_THAT(
      text,
      HasSubstr("takt_p2p_bytes_total{direction=\"activation\",job=\"kjv\",pp_rank=\"1\"} 8192"));
  EXPECT_THAT(text, HasSubstr("takt_last_step_timestamp_seconds{job=\"kjv\"} 8"));
}

TEST(StepMetrics, OnlyRankZeroShowsWhatOnlyItKnows) {
  EXPECT_THAT(AfterTwoSteps(Rank(1)), Not(HasSubstr("takt_loss")));
  const std::string text = AfterTwoSteps(Rank(0));
  EXPECT_THAT(text, HasSubstr("takt_loss{job=\"kjv\"} 2.5"));
  EXPECT_THAT(text, HasSubstr("takt_tokens_total{job=\"kjv\"} 128"));
}

}  // namespace
}  // namespace takt::session
