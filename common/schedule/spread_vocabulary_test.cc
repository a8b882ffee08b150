// SPDX-License-Identifier: Apache-2.0
#include "common/schedule/spread_vocabulary.h"

#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/schedule/generate.h"
#include "common/schedule/render.h"
#include "common/schedule/testing/any_family.h"
#include "common/schedule/text.h"
#include "common/schedule/validator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rapidcheck/gtest.h"

namespace takt::schedule {
namespace {

using ::testing::HasSubstr;

Schedule Generated(std::string_view family, int ranks, int microbatches) {
  auto schedule = Generate(family, {.num_ranks = ranks, .num_microbatches = microbatches});
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  return *std::move(schedule);
}

cost::Costs HeadCosts() {
  cost::Costs costs;
  costs.vocabulary_forward = {1};
  costs.vocabulary_backward = {1};
  return costs;
}

Schedule Spread(std::string_view family, int ranks, int microbatches, int depth) {
  auto spread = SpreadVocabulary(Generated(family, ranks, microbatches), HeadCosts(), depth);
  EXPECT_TRUE(spread.ok()) << spread.status();
  return *std::move(spread);
}

// The actions of a row that are of one kind.
Row OfKind(const Row& row, ActionKind kind) {
  Row found;
  for (Action action : row) {
    if (action.kind != kind) continue;
    action.joins_next = false;
    found.push_back(action);
  }
  return found;
}

TEST(SpreadVocabulary, PlacesThePassesWhereRanksWouldIdle) {
  EXPECT_EQ(FormatCsv(Spread("1f1b", 2, 1, /*depth=*/0)),
            "0F0,2S0,2T0,0B0\n"
            "1F0,2S0,2T0,1B0\n");
}

TEST(SpreadVocabulary, IsLegalForEveryFamilyAndSize) {
  int spread_schedules = 0;
  for (const Family& family : Families()) {
    for (const int ranks : {1, 2, 4, 8}) {
      for (const int microbatches : {1, 4, 8, 16}) {
        const auto schedule =
            Generate(family.name, {.num_ranks = ranks, .num_microbatches = microbatches});
        if (!schedule.ok() || !MaySpread(*schedule)) continue;
        for (int depth = 0; depth <= 3; ++depth) {
          SCOPED_TRACE(
              absl::StrCat(schedule->name, " P=", ranks, " M=", microbatches, " depth=", depth));
          const auto spread = SpreadVocabulary(*schedule, HeadCosts(), depth);
          if (depth > 0 && !spread.ok()) continue;
          ASSERT_TRUE(spread.ok()) << spread.status();
          EXPECT_TRUE(Validate(*spread).ok()) << Validate(*spread);
          const std::vector<int> before = PeakInFlight(*schedule), after = PeakInFlight(*spread);
          for (std::size_t rank = 0; rank < before.size(); ++rank) {
            EXPECT_LE(after[rank], before[rank] + depth);
          }
          ++spread_schedules;
        }
      }
    }
  }
  EXPECT_GT(spread_schedules, 200);
}

// The paper has the same peaks for two meetings.
TEST(SpreadVocabulary, Holds1F1BAndTwoMore) {
  const std::vector<int> peaks = PeakInFlight(Spread("1f1b", 4, 16, /*depth=*/2));
  EXPECT_EQ(peaks, (std::vector<int>{6, 5, 4, 3}));
}

TEST(SpreadVocabulary, RefusesWhatCannotSpread) {
  const cost::Costs costs = HeadCosts();
  EXPECT_THAT(SpreadVocabulary(Generated("1f1b", 2, 4), costs, -1).status().message(),
              HasSubstr("0 or more"));
  EXPECT_THAT(SpreadVocabulary(Generated("pipedream", 2, 4), costs, 0).status().message(),
              HasSubstr("no flush"));
  EXPECT_THAT(SpreadVocabulary(Generated("chimera", 2, 4), costs, 0).status().message(),
              HasSubstr("two copies"));
  EXPECT_THAT(SpreadVocabulary(Spread("1f1b", 2, 4, 0), costs, 0).status().message(),
              HasSubstr("already"));
}

TEST(SpreadVocabulary, SurvivesTheTextForm) {
  for (const char* family : {"1f1b", "zb-v"}) {
    const Schedule schedule = Spread(family, 4, 8, /*depth=*/2);
    const auto parsed = ParseCsv(FormatCsv(schedule), "file");
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_TRUE(parsed->spreads_vocabulary);
    EXPECT_EQ(parsed->num_stages, schedule.num_stages);
    EXPECT_EQ(parsed->num_microbatches, schedule.num_microbatches);
    EXPECT_EQ(parsed->ranks, schedule.ranks);
    EXPECT_EQ(InferPlacement(*parsed).value(), schedule.placement);
  }
}

std::string Verdict(const Schedule& schedule) { return std::string(Validate(schedule).message()); }

TEST(Validator, RefusesAMissingPassOfTheVocabulary) {
  Schedule schedule = Spread("1f1b", 2, 2, 0);
  std::erase_if(schedule.ranks[0], [](const Action& action) {
    return action.kind == ActionKind::kVocabularyBackward && action.microbatch == MicrobatchId(1);
  });
  EXPECT_THAT(Verdict(schedule), HasSubstr("2T1 is missing"));
}

TEST(Validator, RefusesPassesOfTheVocabularyWhereItIsNotSpread) {
  Schedule schedule = Spread("1f1b", 2, 2, 0);
  schedule.spreads_vocabulary = false;
  EXPECT_THAT(Verdict(schedule), HasSubstr("which this schedule does not spread"));
}

TEST(Validator, RefusesPassesOfTheVocabularyOutOfOrder) {
  const auto verdict = [](std::string_view first_row) {
    const std::string csv =
        absl::StrCat(std::string(first_row), "\n1F0,1F1,2S0,2S1,2T0,2T1,1B0,1B1\n");
    const auto schedule = ParseCsv(csv, "file");
    EXPECT_TRUE(schedule.ok()) << schedule.status();
    return Verdict(*schedule);
  };
  EXPECT_EQ(verdict("0F0,0F1,2S0,2S1,2T0,2T1,0B0,0B1"), "");
  EXPECT_THAT(verdict("0F0,0F1,2S1,2S0,2T0,2T1,0B0,0B1"), HasSubstr("2S1 comes before 2S0"));
  EXPECT_THAT(verdict("0F0,0F1,2S0,2S1,2T1,2T0,0B0,0B1"), HasSubstr("2T1 comes before 2T0"));
  EXPECT_THAT(verdict("0F0,0F1,2T0,2S0,2S1,2T1,0B0,0B1"), HasSubstr("2T0 comes before 2S0"));
}

TEST(Validator, RefusesADoubledPassAndTwoCopiesOfTheWeights) {
  Schedule schedule = Spread("1f1b", 2, 2, 0);
  schedule.ranks[1].push_back(schedule.ranks[1].back());
  schedule.ranks[1].back() = {StageId(2), ActionKind::kVocabularyForward, MicrobatchId(0)};
  EXPECT_THAT(Verdict(schedule), HasSubstr("occurs twice"));
  schedule = Spread("1f1b", 2, 2, 0);
  schedule.placement = Placement::kBidirectional;
  EXPECT_THAT(Verdict(schedule), HasSubstr("cannot spread the vocabulary"));
}

// Rank 0 wants its gradient before it has run T, and the last stage waits for all T.
TEST(Validator, SpellsOutACycleThroughTheVocabulary) {
  auto schedule = ParseCsv("0F0,2S0,0B0,2T0\n1F0,2S0,2T0,1B0\n", "file");
  ASSERT_TRUE(schedule.ok());
  EXPECT_THAT(Verdict(*schedule), HasSubstr("can never start"));
  EXPECT_THAT(Verdict(*schedule), HasSubstr("1B0 (rank 1, cell 4) waits for 2T0"));
}

TEST(RenderSvg, HasALegendOfTheVocabulary) {
  Timeline timeline;
  timeline.makespan = 2;
  std::vector<TimedAction>& row = timeline.ranks.emplace_back();
  row.push_back({{StageId(1), ActionKind::kVocabularyForward, MicrobatchId(0)}, 0, 1});
  row.push_back({{StageId(1), ActionKind::kVocabularyBackward, MicrobatchId(0)}, 1, 2});
  const std::string svg = RenderSvg(timeline);
  EXPECT_THAT(svg, HasSubstr("S logits"));
  EXPECT_THAT(svg, HasSubstr("T loss"));
  EXPECT_THAT(RenderGrid(timeline), HasSubstr("1S0"));
}

// Legal, and with the forwards and the backwards of every rank in the order that they had.
RC_GTEST_PROP(SpreadVocabularyProperty, KeepsTheOrderOfEachKind, ()) {
  const Schedule schedule = AnyFamily();
  RC_PRE(MaySpread(schedule));
  cost::Costs costs;
  costs.vocabulary_forward = {Uniform(0, 5) * 0.5};
  costs.vocabulary_backward = {Uniform(0, 5) * 0.5};
  costs.link.latency = Uniform(0, 3) * 0.25;
  const int depth = Uniform(0, 4);
  const auto spread = SpreadVocabulary(schedule, costs, depth);
  RC_PRE(depth == 0 || spread.ok());
  RC_ASSERT(spread.ok());
  RC_ASSERT(Validate(*spread).ok());
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    for (const ActionKind kind : {ActionKind::kForward, ActionKind::kInputGrad,
                                  ActionKind::kWeightGrad, ActionKind::kBackward}) {
      RC_ASSERT(OfKind(spread->ranks[rank], kind) == OfKind(schedule.ranks[rank], kind));
    }
  }
}

}  // namespace
}  // namespace takt::schedule
