// SPDX-License-Identifier: Apache-2.0
#include "common/sim/simulate.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "common/schedule/text.h"
#include "common/sim/testing/program_edit.h"
#include "common/sim/timeline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::sim {
namespace {

using program::Program;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Simulate, MeetsThePublishedFiguresOfFourRanksAndEightMicrobatches) {
  const auto naive = Simulate(Programs("naive", 4, 8), {}).value();
  EXPECT_EQ(naive.makespan, 96);
  EXPECT_EQ(naive.bubble_fraction, 0.75);
  EXPECT_EQ(naive.ranks[0].peak_in_flight, 1);
  const auto gpipe = Simulate(Programs("gpipe", 4, 8), {}).value();
  EXPECT_EQ(gpipe.makespan, 33);
  EXPECT_DOUBLE_EQ(gpipe.bubble_fraction, 3.0 / 11);
  EXPECT_EQ(gpipe.ranks[0].peak_in_flight, 8);
  const auto one_f_one_b = Simulate(Programs("1f1b", 4, 8), {}).value();
  EXPECT_EQ(one_f_one_b.makespan, 33);
  EXPECT_DOUBLE_EQ(one_f_one_b.bubble_fraction, 3.0 / 11);
  EXPECT_EQ(one_f_one_b.ranks[0].peak_in_flight, 4);
}

TEST(Simulate, SplitsIdleTimeByWhereItIs) {
  const auto idle = [](std::string_view family, int rank) {
    const RankReport report = Simulate(Programs(family, 4, 8), {}).value().ranks[rank];
    return std::vector<double>{report.warmup_idle, report.steady_idle, report.cooldown_idle,
                               report.internal_idle};
  };
  // The first rank turns from forwards to backwards while the others run. The last one waits to be
  // filled and drained.
  EXPECT_EQ(idle("gpipe", 0), (std::vector<double>{0, 0, 0, 9}));
  EXPECT_EQ(idle("gpipe", 3), (std::vector<double>{3, 0, 6, 0}));
  // Here it waits for the first gradient, and then for one after each of the last ones.
  EXPECT_EQ(idle("1f1b", 0), (std::vector<double>{0, 0, 0, 9}));
  EXPECT_EQ(idle("1f1b", 3), (std::vector<double>{3, 0, 6, 0}));
}

TEST(Simulate, CountsTheOptimizerAfterTheBarrierIfItCosts) {
  EXPECT_EQ(Simulate(Programs("1f1b", 4, 8), {.optimizer = {2}}).value().makespan, 35);
}

TEST(Simulate, AddsTheMeetingsInsideWhatIsComputed) {
  // F and B of the first stage gather 6 bytes and add up 12.
  const std::vector<program::Part> passes = {
      {program::PartKind::kGather, program::PartGroup::kTensor, 6},
      {},
      {program::PartKind::kScatter, program::PartGroup::kTensor, 12}};
  const auto programs =
      Programs("1f1b", 2, 1,
               {.stages = {{.layers = {{.forward = passes, .input_grad = passes}}},
                           {.first_layer = LayerId(1), .last_layer = LayerId(2)}}});
  EXPECT_EQ(Simulate(programs, {}).value().makespan, 6);
  const cost::Costs costs{.tensor = {{.size = 3, .link = {.latency = 1, .seconds_per_byte = 0.5}},
                                     {.size = 3, .link = {.latency = 100}}}};
  const Report report = Simulate(programs, costs).value();
  // Each pass waits twice for two ranks, and passes 18 bytes on.
  EXPECT_EQ(report.makespan, 6 + 2 * (2 * 2 + 9));
  EXPECT_EQ(report.ranks[0].busy, 3);
  EXPECT_EQ(report.ranks[0].meetings, 26);
  EXPECT_EQ(report.ranks[1].meetings, 0);
  EXPECT_DOUBLE_EQ(report.bubble_fraction, 1 - 6.0 / (2 * 32));
}

TEST(Simulate, RefusesGroupsOfNobody) {
  EXPECT_THAT(
      std::string(Simulate(Programs("1f1b", 2, 1), {.tensor = {{.size = 0}}}).status().message()),
      HasSubstr("cost.tensor is 0: at least one rank"));
}

TEST(Simulate, CountsStashBytes) {
  const auto programs = Programs(
      "1f1b", 2, 4,
      {.stages = {{.output_bytes = 1, .stash_bytes = 100},
                  {.first_layer = LayerId(1), .last_layer = LayerId(2), .stash_bytes = 30}}});
  const auto report = Simulate(programs, {}).value();
  EXPECT_EQ(report.ranks[0].peak_stash_bytes, 200);
  EXPECT_EQ(report.ranks[1].peak_stash_bytes, 30);
}

TEST(Simulate, FollowsWhatRanksHoldIfAsked) {
  const auto programs = Programs(
      "1f1b", 2, 4,
      {.stages = {{.output_bytes = 10, .stash_bytes = 100},
                  {.first_layer = LayerId(1), .last_layer = LayerId(2), .stash_bytes = 30}}});
  EXPECT_TRUE(Simulate(programs, {}).value().held.empty());
  const Report report = Simulate(programs, {}, {.follow_memory = true}).value();
  ASSERT_EQ(report.held.size(), 2u);
  for (int rank = 0; rank < 2; ++rank) {
    const std::vector<HeldBytes>& held = report.held[rank];
    EXPECT_EQ(held.front().time, 0);
    EXPECT_TRUE(std::ranges::is_sorted(held, {}, &HeldBytes::time));
    EXPECT_EQ(std::ranges::max_element(held, {}, &HeldBytes::stash)->stash,
              report.ranks[rank].peak_stash_bytes);
    EXPECT_EQ(std::ranges::max_element(held, {}, &HeldBytes::buffers)->buffers,
              report.ranks[rank].peak_buffer_bytes);
    EXPECT_EQ(held.back().stash, 0);
    EXPECT_EQ(held.back().buffers, 0);
  }
  // The last rank holds a stash from F to B, of one microbatch after the other: F runs from 1 to 2.
  const auto at = [&](double time) {
    return std::prev(std::ranges::upper_bound(report.held[1], time, {}, &HeldBytes::time))->stash;
  };
  EXPECT_EQ(at(0.5), 0);
  EXPECT_EQ(at(1.5), 30);
  EXPECT_EQ(at(report.makespan), 0);
}

TEST(Simulate, LetsBandwidthOccupyTheLinkAndLatencyNot) {
  const program::LowerOptions options{
      .stages = {{.output_bytes = 10}, {.first_layer = LayerId(1), .last_layer = LayerId(2)}}};
  const auto programs = Programs("gpipe", 2, 2, options);
  // F of both microbatches takes no time. The messages follow each other on the link, 5 each, or
  // travel beside each other.
  const cost::Costs nothing{.forward = {0}, .input_grad = {0}, .weight_grad = {0}, .backward = {0}};
  cost::Costs bandwidth = nothing;
  bandwidth.link.seconds_per_byte = 0.5;
  EXPECT_EQ(Simulate(programs, bandwidth).value().makespan, 20);
  cost::Costs latency = nothing;
  latency.link.latency = 5;
  EXPECT_EQ(Simulate(programs, latency).value().makespan, 10);
}

TEST(Simulate, TakesCostsByStageAndRefusesImpossibleOnes) {
  const auto programs = Programs("naive", 2, 1);
  EXPECT_EQ(Simulate(programs, {.forward = {1, 10}, .backward = {2, 20}}).value().makespan, 33);
  EXPECT_THAT(std::string(Simulate(programs, {.forward = {1, 2, 3}}).status().message()),
              HasSubstr("one for each of the 2 stages"));
  EXPECT_THAT(std::string(Simulate(programs, {.link = {.latency = -1}}).status().message()),
              HasSubstr("cost.comm is -1"));
  EXPECT_THAT(std::string(Simulate(programs, {.reduction = {-1}}).status().message()),
              HasSubstr("cost.reduction is -1"));
  EXPECT_FALSE(Simulate(programs, {.optimizer = {std::numeric_limits<double>::infinity()}}).ok());
}

TEST(Simulate, CountsMessagesWhereTheyAreHeld) {
  const auto peaks = [](int microbatches, const cost::Costs& costs) {
    const auto programs = Programs(
        "gpipe", 2, microbatches,
        {.stages = {{.output_bytes = 10}, {.first_layer = LayerId(1), .last_layer = LayerId(2)}}});
    const auto report = Simulate(programs, costs).value();
    return std::vector<std::int64_t>{report.ranks[0].peak_buffer_bytes,
                                     report.ranks[1].peak_buffer_bytes};
  };
  // An activation counts while it is made and sent, and until its B, which makes a gradient.
  EXPECT_EQ(peaks(1, {}), (std::vector<std::int64_t>{10, 20}));
  // All inputs count until their B.
  EXPECT_EQ(peaks(4, {})[1], 50);
  // On a slow link the next activation waits beside the one that is under way.
  EXPECT_EQ(peaks(2, {.link = {.seconds_per_byte = 1}})[0], 20);
}

TEST(Simulate, RunsAPairAsOne) {
  const auto schedule = schedule::ParseCsv("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n", "pair.csv").value();
  const auto programs = program::Lower(schedule, {}).value();
  EXPECT_EQ(Simulate(programs, {}).value().makespan, 1 + 3 + 2);
  const auto report = Simulate(programs, {.overlap = {2.5}}).value();
  EXPECT_EQ(report.makespan, 1 + 2.5 + 2);
  EXPECT_EQ(report.ranks[0].peak_in_flight, 2);
  // Pictures show both halves, at the same time.
  const auto row = MakeTimeline(programs, report).ranks[0];
  ASSERT_EQ(row.size(), 4u);
  EXPECT_EQ(row[1].action.ToString(), "0F1");
  EXPECT_TRUE(row[1].action.joins_next);
  EXPECT_EQ(row[2].action.ToString(), "0B0");
  EXPECT_EQ(row[2].start, row[1].start);
  EXPECT_EQ(row[2].end, 3.5);
}

// One half computes while the other one meets: F and B take 1 and 2, and each meets twice.
TEST(Simulate, LengthensAPairByTheMeetingsThatNothingHides) {
  using program::Part;
  const Part gather = {program::PartKind::kGather, program::PartGroup::kTensor};
  const std::vector<Part> pass = {gather, Part{}, gather};
  const auto schedule = schedule::ParseCsv("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n", "pair.csv").value();
  const auto programs =
      program::Lower(schedule, {.stages = {{.layers = {{.forward = pass, .input_grad = pass}}}}})
          .value();
  const auto pair_takes = [&](double meeting, std::optional<double> overlap, bool beside = true) {
    const cost::Costs costs{.overlap = {overlap},
                            .tensor = {{.size = 2, .link = {.latency = meeting}}},
                            .halves_run_beside = beside};
    const Report report = Simulate(programs, costs).value();
    EXPECT_EQ(report.ranks[0].busy + report.ranks[0].meetings, report.makespan);
    return report.events[1].end - report.events[1].start;
  };
  EXPECT_EQ(pair_takes(0, {}), 3);
  EXPECT_EQ(pair_takes(0.5, {}), 3);     // all that is computed
  EXPECT_EQ(pair_takes(0.75, {}), 3.5);  // the B, with its meetings
  EXPECT_EQ(pair_takes(2, {}), 8);       // all that is passed on
  EXPECT_EQ(pair_takes(0.5, 3.5), 3.5);  // as measured
  EXPECT_EQ(pair_takes(0.5, {}, /*beside=*/false), 5);
  EXPECT_EQ(pair_takes(0.5, 2.5, /*beside=*/false), 4.5);
}

// The names and reasons of a path.
std::vector<std::string> Text(const std::vector<CriticalLink>& path) {
  std::vector<std::string> text;
  for (const CriticalLink& link : path) {
    text.push_back(link.action + " after " + std::string(Name(link.after)));
  }
  return text;
}

TEST(CriticalPath, GoesThroughActionsAndMessages) {
  const auto report = Simulate(Programs("gpipe", 2, 1), {.link = {.latency = 0.5}}).value();
  EXPECT_THAT(Text(report.critical_path),
              ElementsAre("0F0 after nothing", "0SEND_F0 after same rank", "1F0 after message",
                          "1B0 after same rank", "1SEND_B0 after same rank", "0B0 after message"));
  EXPECT_EQ(report.critical_path[1].start, 1);
  EXPECT_EQ(report.critical_path[1].end, 1.5);
  EXPECT_EQ(report.critical_path.back().end, 7);
}

TEST(CriticalPath, WaitsForALinkThatIsTaken) {
  const auto programs = Programs(
      "gpipe", 2, 2,
      {.stages = {{.output_bytes = 1}, {.first_layer = LayerId(1), .last_layer = LayerId(2)}}});
  const cost::Costs slow_link{.backward = {0}, .link = {.seconds_per_byte = 5}};
  EXPECT_THAT(Text(Simulate(programs, slow_link).value().critical_path),
              ElementsAre("0F0 after nothing", "0SEND_F0 after same rank", "0SEND_F1 after message",
                          "1F1 after message", "1B0 after same rank", "1SEND_B0 after same rank",
                          "1SEND_B1 after message", "0B1 after message"));
}

TEST(CriticalPath, EndsWithTheOptimizerOfTheRankThatWaitedForAnother) {
  const auto programs = Programs("gpipe", 2, 1, {.reduce_gradients = true});
  const cost::Costs costs{.reduction = {4, 20}, .optimizer = {2}};
  const auto report = Simulate(programs, costs).value();
  // Rank 1 ends its B at 4 and sums until 24. Rank 0 ends at 6 and sums until 10.
  EXPECT_EQ(report.makespan, 26);
  EXPECT_THAT(
      Text(report.critical_path),
      ElementsAre("0F0 after nothing", "0SEND_F0 after same rank", "1F0 after message",
                  "1B0 after same rank", "REDUCE_GRAD(1) after same rank", "OPT after optimizer"));
}

TEST(Simulate, SharesTheTimeOfAReductionAmongTheLayersOfItsStage) {
  const auto programs =
      Programs("gpipe", 1, 1, {.stages = {{.last_layer = LayerId(4)}}, .reduce_gradients = true});
  EXPECT_EQ(Simulate(programs, {.reduction = {8}}).value().makespan, 3 + 8);
}

TEST(Simulate, GathersOfShardsTakeTheSecondHalfOfASumAfterTheUpdate) {
  const auto programs = Programs(
      "gpipe", 1, 1,
      {.stages = {{.last_layer = LayerId(4)}}, .reduce_gradients = true, .shard_optimizer = true});
  const cost::Costs costs{.reduction = {8}, .optimizer = {2}};
  EXPECT_EQ(Simulate(programs, costs).value().makespan, 3 + 4 + 2 + 4);
}

// The gathers of a later stage run behind the forwards of an earlier one.
TEST(Simulate, GathersOfShardsRunBehindTheNextStepsForwards) {
  const program::LowerOptions shards = {.reduce_gradients = true, .shard_optimizer = true};
  const auto programs = Programs("interleaved-1f1b", 2, 4, shards);
  const cost::Costs costs{.reduction = {4}, .optimizer = {1}};
  const Report one = Simulate(programs, costs).value();
  const Report steady = Simulate(programs, costs, {.steps = 4}).value();
  // A rank has two stages of one layer each. Only the first one's gather, of 2, is waited for.
  EXPECT_EQ(one.makespan - steady.step_time, 2);
}

TEST(Simulate, MakesTheRanksOfATiedEmbeddingMeet) {
  const auto programs = Programs("gpipe", 2, 1, {.tied_embeddings = true});
  EXPECT_EQ(Simulate(programs, {.tied_reduction = 5}).value().makespan, 6 + 5);
}

TEST(Simulate, StaggersStepsThatNoBarrierHoldsTogether) {
  const auto step_time = [](std::string_view family, bool barrier) {
    return Simulate(Programs(family, 4, 8), {.optimizer = {1}}, {.steps = 4, .barrier = barrier})
        .value()
        .step_time;
  };
  // The first rank of 1f1b is the first to begin and the last to end, so nothing is gained. With
  // zb-h2 every rank has as much to do between its first and its last action, and no gaps.
  EXPECT_EQ(step_time("1f1b", true), 34);
  EXPECT_EQ(step_time("1f1b", false), 34);
  EXPECT_EQ(step_time("zb-h2", true), 24 + 3 + 1);
  EXPECT_EQ(step_time("zb-h2", false), 24 + 1);
}

TEST(Simulate, RefusesCostsOfAnotherNumberOfRanks) {
  const absl::Status status = Simulate(Programs("gpipe", 2, 1), {.optimizer = {1, 2, 3}}).status();
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("cost.optimizer is 3 values: one value, or one for each of the 2 ranks"));
}

TEST(Simulate, RefusesNoSteps) {
  EXPECT_THAT(std::string(Simulate(Programs("gpipe", 1, 1), {}, {.steps = 0}).status().message()),
              HasSubstr("steps is 0: must be at least 1"));
}

}  // namespace
}  // namespace takt::sim
