// SPDX-License-Identifier: Apache-2.0
// Compares every generator with every published order of its family. Ours is the same action for
// action where it is meant to be. Otherwise it is no longer (at two sets of costs) and no larger.
#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>

#include "common/schedule/generate.h"
#include "common/schedule/testing/dry_run.h"
#include "common/schedule/text.h"
#include "common/schedule/validator.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace takt::schedule {
namespace {

using nlohmann::json;

const char kGolden[] = TAKT_SOURCE_DIR "/tests/golden/schedules/";

struct Ours {
  std::string_view name;
  bool same_order = false;
};

// Golden families that are not here have no generator of their own. The search is held to them.
const std::map<std::string, Ours>& GeneratorOf() {
  static const std::map<std::string, Ours> ours = {
      {"gpipe", {"gpipe", true}},
      {"1f1b", {"1f1b", true}},
      {"1f1b-deepspeed", {"1f1b", true}},
      {"1f1b-zbrepo", {"1f1b", true}},
      {"interleaved1f1b", {"interleaved-1f1b", true}},
      {"interleaved1f1b-megatron", {"interleaved-1f1b", true}},
      {"loopedbfs", {"looped-bfs"}},
      {"zbh1", {"zb-h1"}},
      {"interleavedzb", {"interleaved-zb", true}},
      {"gis", {"gis", true}},
      {"zb1p", {"zb-1p", true}},
      {"zb1p-skew", {"zb-1p"}},
      {"zb2p", {"zb-2p", true}},
      {"zb2p-skew", {"zb-2p"}},
      {"zbv", {"zb-v", true}},
      {"vhalf", {"v-half"}},
      {"dualpipe", {"dualpipe", true}},
      {"dualpipev", {"dualpipe-v", true}},
      {"dualpipev-deepseek", {"dualpipe-v", true}},
      {"chimera", {"chimera"}},
      {"vmin", {"v-min"}},
  };
  return ours;
}

std::string ReadGolden(const std::string& file) {
  std::ifstream in(kGolden + file, std::ios::binary);
  EXPECT_TRUE(in.good()) << file;
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<json> Entries(bool same_order_only) {
  std::vector<json> entries;
  for (const json& entry : json::parse(ReadGolden("expected.json"))) {
    const auto ours = GeneratorOf().find(entry["family"]);
    if (ours == GeneratorOf().end()) continue;
    if (ours->second.same_order || !same_order_only) entries.push_back(entry);
  }
  return entries;
}

cost::Costs CostsOf(const std::string& set) {
  if (set == "unit") return {};
  return {.forward = {1.0},
          .input_grad = {1.1},
          .weight_grad = {0.7},
          .backward = {1.8},
          .link = {.latency = 0.1}};
}

absl::StatusOr<Schedule> Make(const json& entry, const cost::Costs& costs) {
  GenerateOptions options{.num_ranks = entry["ranks"],
                          .num_microbatches = entry["microbatches"],
                          .num_chunks = entry["chunks"].get<int>(),
                          .costs = costs};
  if (entry.contains("group")) options.group = entry["group"].get<int>();
  return Generate(GeneratorOf().at(entry["family"]).name, options);
}

int Largest(const std::vector<int>& peaks) { return *std::max_element(peaks.begin(), peaks.end()); }

class GoldenFigures : public ::testing::TestWithParam<json> {};

TEST_P(GoldenFigures, AreNoBetterThanOurs) {
  const json& entry = GetParam();
  for (const std::string set : {"unit", "skew"}) {
    const cost::Costs costs = CostsOf(set);
    const auto ours = Make(entry, costs);
    ASSERT_TRUE(ours.ok()) << ours.status();
    ASSERT_TRUE(Validate(*ours).ok()) << Validate(*ours);
    EXPECT_TRUE(Warnings(*ours).empty()) << Warnings(*ours)[0];
    const double makespan = DryRun(*ours, costs).makespan;
    const double golden = entry[set]["makespan"];
    EXPECT_LE(makespan, golden + 1e-6) << set;
    if (makespan < golden - 1e-6) RecordProperty(set, "shorter than published");
    EXPECT_LE(Largest(PeakInFlight(*ours)), Largest(entry["peaks"].get<std::vector<int>>()));
  }
}

class GoldenOrder : public ::testing::TestWithParam<json> {};

TEST_P(GoldenOrder, IsOurs) {
  const json& entry = GetParam();
  const std::string file = entry["file"];
  const auto golden = ParseCsv(ReadGolden(file), file);
  const auto ours = Make(entry, {});
  ASSERT_TRUE(golden.ok()) << golden.status();
  ASSERT_TRUE(ours.ok()) << ours.status();
  EXPECT_EQ(FormatCsv(*ours), FormatCsv(*golden));
}

std::string NameOf(const ::testing::TestParamInfo<json>& info) {
  std::string name = info.param["file"];
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, GoldenFigures, ::testing::ValuesIn(Entries(false)), NameOf);
INSTANTIATE_TEST_SUITE_P(All, GoldenOrder, ::testing::ValuesIn(Entries(true)), NameOf);

}  // namespace
}  // namespace takt::schedule
