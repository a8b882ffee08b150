// SPDX-License-Identifier: Apache-2.0
#include "common/schedule/render.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::schedule {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TimedAction At(double start, double end, std::string_view text) {
  return {Action::Parse(text).value(), start, end};
}

Timeline TwoRanks() {
  return {.title = "a < b & \"c\"",
          .makespan = 6,
          .ranks = {{At(0, 1, "0F0"), At(4, 6, "0B0")}, {At(1, 2, "1F0"), At(2, 4, "1B0")}}};
}

// The rank is idle between an F and an F, from 1 to 4.
std::vector<TimedAction> Pair() {
  std::vector<TimedAction> row = {At(0, 1, "0F0"), At(1, 4, "1F1"), At(1, 4, "0B2"),
                                  At(4, 5, "2F2")};
  row[1].action.joins_next = true;
  return row;
}

int Count(std::string_view text, std::string_view part) {
  int count = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(RenderGrid, PlacesActionsInTime) {
  EXPECT_EQ(RenderGrid(TwoRanks()),
            "a < b & \"c\"\n"
            "rank  0 |0F0|...........|0B0----|\n"
            "rank  1 ....|1F0|1B0----|........\n");
}

TEST(RenderGrid, DrawsAPairAsOneCell) {
  EXPECT_EQ(RenderGrid({.makespan = 5, .ranks = {Pair()}}), "rank  0 |0F0|(1F1;0B2)--|2F2|\n");
}

TEST(RenderGrid, SurvivesActionsWithoutDurationAndEmptyTimelines) {
  EXPECT_EQ(RenderGrid({}), "");
  EXPECT_EQ(RenderGrid({.ranks = {{}}}), "rank  0 .\n");
  EXPECT_EQ(RenderGrid({.ranks = {{At(0, 0, "0F0")}}}), "rank  0 |\n");
}

TEST(RenderGrid, StaysBoundedWhenDurationsAreVeryUnequal) {
  const Timeline timeline{.makespan = 1e9, .ranks = {{At(0, 1e-9, "0F0"), At(1, 1e9, "0B0")}}};
  EXPECT_LT(RenderGrid(timeline).size(), 100'000u);
}

TEST(RenderSvg, DrawsEveryActionWithLabelAndDetails) {
  const std::string svg = RenderSvg(TwoRanks());
  EXPECT_THAT(svg, HasSubstr("a &lt; b &amp;"));
  EXPECT_EQ(Count(svg, "<rect class="), 4);
  EXPECT_THAT(svg, HasSubstr("<title>0B0: 4 to 6</title>"));
  EXPECT_EQ(Count(svg, ">B0</text>"), 2);
  EXPECT_THAT(svg, HasSubstr("F forward"));
  EXPECT_THAT(svg, HasSubstr("idle"));
  EXPECT_THAT(svg, Not(HasSubstr("W gradient of weights")));
  EXPECT_EQ(Count(svg, "<g "), Count(svg, "</g>"));
  EXPECT_EQ(Count(svg, "<text"), Count(svg, "</text>"));
}

TEST(RenderSvg, DrawsAPairAsTwoHalvesOfOneCell) {
  const std::string svg = RenderSvg({.makespan = 5, .ranks = {Pair()}});
  EXPECT_EQ(Count(svg, "height=\"12\"><title>"), 2);
  EXPECT_EQ(Count(svg, "height=\"24\"><title>"), 2);
  EXPECT_THAT(svg, HasSubstr("0B2: 1 to 4"));
}

TEST(RenderSvg, SaysHowLongEachRankIdlesAndHowMuchItHolds) {
  const std::string svg = RenderSvg({.makespan = 5, .ranks = {Pair(), {At(1, 2, "1F0")}}});
  EXPECT_THAT(svg, HasSubstr(">0 (0.0%)</text>"));  // a pair is busy once, not twice
  EXPECT_THAT(svg, HasSubstr(">4 (80.0%)</text>"));
  EXPECT_THAT(svg, HasSubstr("in flight, up to 3"));
  // The number is on the axis, and is the peak of rank 0: B2 begins in the step before, and F1
  // counts before B2 ends.
  EXPECT_EQ(Count(svg, ">3</text>"), 2);
  EXPECT_THAT(svg, HasSubstr("warm-up"));
}

TEST(RenderSvg, CurveFollowsWhatIsInFlight) {
  const std::string svg = RenderSvg({.makespan = 4, .ranks = {{At(0, 1, "0F0"), At(2, 4, "0B0")}}});
  EXPECT_THAT(svg, HasSubstr("M0 40H0V25H620V40H620V40z"));
}

TEST(RenderSvg, LeavesLettersOutWhereTheyWouldMakeItTooWide) {
  Timeline timeline{.makespan = 300, .ranks = {{}}};
  for (int i = 0; i < 150; ++i) {
    timeline.ranks[0].push_back(
        {{StageId(0), ActionKind::kForward, MicrobatchId(i)}, i * 1.0, i + 1.0});
  }
  const std::string svg = RenderSvg(timeline);
  EXPECT_THAT(svg, HasSubstr(">149</text>"));
  EXPECT_THAT(svg, HasSubstr("number: microbatch"));
}

TEST(RenderSvg, ShadesChunksAndSaysSo) {
  Timeline timeline = TwoRanks();
  EXPECT_THAT(RenderSvg(timeline), Not(HasSubstr("later chunk")));
  timeline.ranks[0].push_back(At(6, 7, "2F0"));
  EXPECT_THAT(RenderSvg(timeline), HasSubstr("later chunk"));
}

TEST(RenderSvg, StaysBoundedWhenDurationsAreVeryUnequal) {
  const Timeline timeline{.makespan = 1e9, .ranks = {{At(0, 1e-9, "0F0"), At(1, 1e9, "0B0")}}};
  EXPECT_LT(RenderSvg(timeline).size(), 1'000'000u);
  EXPECT_THAT(RenderSvg({}), HasSubstr("</svg>"));
}

}  // namespace
}  // namespace takt::schedule
