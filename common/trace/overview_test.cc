// SPDX-License-Identifier: Apache-2.0
#include "common/trace/overview.h"

#include <algorithm>

#include "common/trace/page.h"
#include "common/trace/testing/synthetic_trace.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"

namespace takt::trace {
namespace {

using nlohmann::json;

json OverviewOf(SyntheticTrace& synthetic, int num_bins) {
  return json::parse(OverviewData(MakeTimeline(synthetic.Get()).value(), num_bins));
}

TEST(TimelineOverview, NamesWhatTookMostOfEachPart) {
  SyntheticTrace synthetic("naive", 2, 1);
  const json overview = OverviewOf(synthetic, 40);
  EXPECT_EQ(overview["step"], 2);
  EXPECT_EQ(overview["num_bins"], 40);
  ASSERT_EQ(overview["ranks"].size(), 2u);
  const std::string first = overview["ranks"][0][1], second = overview["ranks"][1][1];
  EXPECT_EQ(first.size(), 40u);
  EXPECT_EQ(first.front(), 'F');   // the first rank begins the step
  EXPECT_EQ(second.front(), '1');  // the second one waits for it
  EXPECT_NE(second.find('F'), std::string::npos);
  EXPECT_NE(first.find('1'), std::string::npos);
}

// Returns the seconds of work and idle time together, of the rank that has most.
double LongestOf(const json& overview) {
  double longest = 0;
  for (const json& rank : overview["ranks"]) {
    double seconds = rank[2].get<double>();
    for (const json& idle : rank[3]) seconds += idle.get<double>();
    longest = std::max(longest, seconds);
  }
  return longest;
}

TEST(TimelineOverview, WorkAndIdleTimeOfTheRankThatEndsLastAreTheStep) {
  for (const char* family : {"1f1b", "zb-v", "dualpipe-v"}) {
    SyntheticTrace synthetic(family, 4, 8);
    const json overview = OverviewOf(synthetic, 100);
    EXPECT_NEAR(LongestOf(overview), overview["seconds"].get<double>(), 1e-6) << family;
  }
}

TEST(TimelineOverview, AMeetingInsideAnInstructionIsNoWork) {
  SyntheticTrace synthetic("gpipe", 1, 2, {.tp_size = 2, .meeting = 1e-3});
  const json overview = OverviewOf(synthetic, 100);
  EXPECT_NEAR(LongestOf(overview), overview["seconds"].get<double>(), 1e-6);
  const std::size_t link = 1;  // of "causes"
  EXPECT_EQ(overview["causes"][link], "link");
  // There are two F with one meeting each.
  EXPECT_NEAR(overview["ranks"][0][3][link].get<double>(), 2e-3, 1e-6);
}

TEST(TimelineOverview, OfOneBinIsTheLargestState) {
  SyntheticTrace synthetic("gpipe", 1, 2, {.forward = 0.1});
  EXPECT_EQ(OverviewOf(synthetic, 1)["ranks"][0][1], "F");
}

TEST(TimelineData, OfSomeRanksIsThatPartOfTheWhole) {
  SyntheticTrace synthetic("1f1b", 4, 8);
  const Timeline timeline = MakeTimeline(synthetic.Get()).value();
  const json whole = json::parse(TimelineData(timeline));
  const json part = json::parse(TimelineData(timeline, {.first = 1, .count = 2}));
  ASSERT_EQ(part["ranks"].size(), 2u);
  EXPECT_EQ(part["first_rank"], 1);
  EXPECT_EQ(part["ranks"][0], whole["ranks"][1]);
  EXPECT_EQ(part["ranks"][1], whole["ranks"][2]);
  const auto between = std::ranges::count_if(whole["messages"], [](const json& message) {
    return message[0] >= 1 && message[0] <= 2 && message[2] >= 1 && message[2] <= 2;
  });
  ASSERT_GT(between, 0);
  EXPECT_EQ(part["messages"].size(), static_cast<std::size_t>(between));
  for (const json& message : part["messages"]) EXPECT_LT(message[2], 2);
}

}  // namespace
}  // namespace takt::trace
