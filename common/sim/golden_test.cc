// SPDX-License-Identifier: Apache-2.0
// Takes published schedules through the whole path (parse, validate, lower, prove, simulate) and
// compares the results with those of an independent simulator.
#include <cmath>
#include <fstream>
#include <iterator>

#include "common/program/lowering.h"
#include "common/schedule/text.h"
#include "common/schedule/validator.h"
#include "common/sim/executed.h"
#include "common/sim/prove.h"
#include "common/sim/simulate.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace takt::sim {
namespace {

using nlohmann::json;

std::string ReadGolden(const std::string& file) {
  std::ifstream in(std::string(TAKT_SOURCE_DIR "/tests/golden/schedules/") + file,
                   std::ios::binary);
  EXPECT_TRUE(in.good()) << file;
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<json> Entries() {
  const json all = json::parse(ReadGolden("expected.json"));
  return {all.begin(), all.end()};
}

cost::Costs CostsOf(const std::string& set) {
  if (set == "unit") return {};
  return {.forward = {1.0},
          .input_grad = {1.1},
          .weight_grad = {0.7},
          .backward = {1.8},
          .link = {.latency = 0.1}};
}

double SixDigits(double value) { return std::round(value * 1e6) / 1e6; }

class GoldenSchedule : public ::testing::TestWithParam<json> {};

TEST_P(GoldenSchedule, SimulatesAsTheIndependentSimulatorSays) {
  const json& expected = GetParam();
  const std::string file = expected["file"];
  auto schedule = schedule::ParseCsv(ReadGolden(file), file);
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  const auto placement = schedule::InferPlacement(*schedule);
  ASSERT_TRUE(placement.ok()) << placement.status();
  EXPECT_EQ(schedule::PlacementName(*placement), expected["placement"].get<std::string>());
  schedule->placement = *placement;

  const auto programs = program::Lower(*schedule, {});
  ASSERT_TRUE(programs.ok()) << programs.status();
  for (const bool one_fifo : {false, true}) {
    const absl::Status proof =
        Prove(*programs, {.one_fifo_per_pair = one_fifo, .schedule = &*schedule});
    ASSERT_TRUE(proof.ok()) << proof;
  }
  for (const std::string set : {"unit", "skew"}) {
    const auto report = Simulate(*programs, CostsOf(set));
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(SixDigits(report->makespan), expected[set]["makespan"].get<double>()) << set;
    EXPECT_EQ(SixDigits(report->bubble_fraction), expected[set]["bubble"].get<double>()) << set;
    EXPECT_EQ(SixDigits(report->span_bubble_fraction), expected[set]["span_bubble"].get<double>())
        << set;
    EXPECT_EQ(report->num_messages, expected["messages"].get<int>());
    std::vector<int> peaks;
    for (const RankReport& rank : report->ranks) peaks.push_back(rank.peak_in_flight);
    EXPECT_EQ(peaks, expected["peaks"].get<std::vector<int>>());
    EXPECT_EQ(peaks, schedule::PeakInFlight(*schedule));
    const auto executed = SimulateExecuted(*programs, CostsOf(set));
    ASSERT_TRUE(executed.ok()) << executed.status();
    EXPECT_EQ(SixDigits(executed->makespan), expected.contains("halves")
                                                 ? expected["halves"][set].get<double>()
                                                 : expected[set]["makespan"].get<double>())
        << set;
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, GoldenSchedule, ::testing::ValuesIn(Entries()),
                         [](const auto& info) {
                           std::string name = info.param["file"];
                           for (char& c : name) {
                             if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
                           }
                           return name;
                         });

}  // namespace
}  // namespace takt::sim
