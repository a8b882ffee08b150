// SPDX-License-Identifier: Apache-2.0
// The search is never worse than a published schedule of the same size, for the memory that it
// takes.
#include <algorithm>
#include <fstream>
#include <map>
#include <tuple>

#include "common/search/search.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace takt::search {
namespace {

using nlohmann::json;
using schedule::Placement;

cost::Costs CostsOf(const std::string& set) {
  if (set == "unit") return {};
  return {.forward = {1},
          .input_grad = {1.1},
          .weight_grad = {0.7},
          .backward = {1.8},
          .link = {.latency = 0.1}};
}

TEST(Search, IsNeverWorseThanAPublishedSchedule) {
  std::ifstream in(TAKT_SOURCE_DIR "/tests/golden/schedules/expected.json");
  ASSERT_TRUE(in.good());
  using Case = std::tuple<int, int, int, int, bool, std::string>;
  std::map<Case, double> makespans;
  for (const json& file : json::parse(in)) {
    const std::vector<int> peaks = file["peaks"];
    const int peak = *std::max_element(peaks.begin(), peaks.end());
    const bool two_ways = file["placement"] == "bidirectional";
    for (const std::string set : {"unit", "skew"}) {
      Request request{.num_ranks = file["ranks"],
                      .num_microbatches = file["microbatches"],
                      .num_chunks = {file["chunks"].get<int>()},
                      .costs = CostsOf(set),
                      .max_in_flight = {peak},
                      .max_candidates = 20'000,
                      .max_time = absl::InfiniteDuration()};
      if (two_ways) request.placements = {Placement::kLoop, Placement::kBidirectional};
      const Case key{
          request.num_ranks, request.num_microbatches, request.num_chunks[0], peak, two_ways, set};
      if (!makespans.contains(key)) {
        const absl::StatusOr<Found> found = Search(request);
        ASSERT_TRUE(found.ok()) << found.status();
        makespans[key] = found->makespan;
      }
      EXPECT_LE(makespans[key], file[set]["makespan"].get<double>() + 1e-6)
          << file["file"] << " " << set << " with " << peak << " in flight";
    }
  }
}

}  // namespace
}  // namespace takt::search
