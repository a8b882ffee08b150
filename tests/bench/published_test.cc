// SPDX-License-Identifier: Apache-2.0
// Tests what `takt-bench published` reads, fits and predicts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "tests/bench/csv_table.h"
#include "tests/bench/published_cases.h"
#include "tests/bench/published_choice.h"
#include "tests/bench/published_fit.h"
#include "tests/bench/published_machine.h"

namespace takt::bench {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

const std::string& Root() {
  static const auto* const root = new std::string(TAKT_SOURCE_DIR);
  return *root;
}

const PublishedCases& Cases() {
  static const auto* const cases =
      new PublishedCases(ReadPublishedCases(Root() + "/tests/golden/published").value());
  return *cases;
}

// Returns the first run of the group.
const PublishedRun& FirstOf(const std::string& group) {
  return *std::ranges::find(Cases().runs, group, &PublishedRun::group);
}

Hardware HardwareOf(const std::string& cluster) {
  return ReadHardware(Root() + "/deploy/examples/clusters/" + cluster + ".yaml").value();
}

// A model of two blocks.
model::ModelConfig SmallModel() {
  return {.layers = 2,
          .hidden = 1024,
          .heads = 8,
          .kv_heads = 8,
          .inner = 4096,
          .context = 512,
          .positions = 512,
          .vocab = 8192};
}

std::vector<CsvRow> Parse(const std::string& text) { return ParseCsv(text, "t.csv").value(); }

TEST(CsvTable, ReadsCellsByTheNamesOfTheirColumns) {
  std::vector<CsvRow> rows = Parse("# what it is\nname,count,times\na,2,0.5 0\n\nb,3,1\n");
  ASSERT_THAT(rows, SizeIs(2));
  EXPECT_EQ(rows[0].Text("name"), "a");
  EXPECT_EQ(rows[1].Count("count"), 3);
  EXPECT_DOUBLE_EQ(rows[1].Positive("times"), 1);
  EXPECT_THAT(rows[0].Numbers("times"), ElementsAre(0.5, 0));
  EXPECT_TRUE(rows[0].status().ok()) << rows[0].status();
}

TEST(CsvTable, SaysWhichCellIsWrong) {
  CsvRow row = Parse("name,count,time,times\n,0,-1,1 x\n").front();
  EXPECT_EQ(row.Text("name"), "");
  EXPECT_EQ(row.Count("count"), 0);
  EXPECT_EQ(row.Positive("time"), 0);
  EXPECT_THAT(row.Numbers("times"), IsEmpty());
  EXPECT_EQ(row.Count("none"), 0);
  const std::vector<FieldError> errors = FieldErrorsOf(row.status());
  ASSERT_THAT(errors, SizeIs(5));
  EXPECT_THAT(errors, Each(Field(&FieldError::where, "t.csv:2")));
  EXPECT_EQ(errors[1].field, "count");
  EXPECT_EQ(errors[1].value, "0");
  EXPECT_EQ(errors[4].rule, "is missing");
}

TEST(CsvTable, RefusesLinesOfAnotherLengthAndTablesWithoutColumns) {
  EXPECT_THAT(std::string(ParseCsv("a,b\n1\n", "t.csv").status().message()),
              HasSubstr("t.csv:2: cells is 1"));
  EXPECT_FALSE(ParseCsv("# nothing\n", "t.csv").ok());
}

TEST(PublishedCases, AreReadAndNameTheirGpus) {
  EXPECT_GE(Cases().runs.size(), 100U);
  EXPECT_THAT(Cases().layers, SizeIs(3));
  EXPECT_THAT(Cases().stages, SizeIs(12));
  EXPECT_THAT(Cases().ranks, SizeIs(2));
  EXPECT_THAT(Cases().left_out, Not(IsEmpty()));
  std::set<std::string> clusters;
  for (const PublishedRun& run : Cases().runs) {
    clusters.insert(run.cluster);
    EXPECT_EQ(run.stage_layers.size(), static_cast<std::size_t>(run.pipeline * run.chunks))
        << run.group << " " << run.Name();
    EXPECT_TRUE(model::CheckConfig(run.model).empty()) << run.model_name;
  }
  EXPECT_THAT(clusters, ElementsAre("a100-512", "b200-8", "h100-2048"));
}

TEST(PublishedCases, NameTheTableThatCannotBeRead) {
  EXPECT_THAT(std::string(ReadPublishedCases("/no/folder").status().message()),
              HasSubstr("/no/folder/models.csv"));
}

TEST(PublishedCases, LighterEndsHaveABlockLessThanTheOthers) {
  const PublishedRun& run = FirstOf("llama-405b-paper");
  EXPECT_EQ(run.gpus(), 8192);
  EXPECT_EQ(run.Name(), "tp8 dp64 pp16x8 mb1");
  EXPECT_EQ(run.stage_layers.front(), 0);
  EXPECT_EQ(run.stage_layers[1], 1);
  EXPECT_EQ(run.stage_layers.back(), 0);
}

TEST(PublishedFit, FindsTheConstantsThatMadeTheSteps) {
  const FittedConstants truth{.peak_share = 0.75, .seconds_per_value = 5e-10};
  const PredictSteps predict = [](const FittedConstants& constants) {
    const double inverse = 1 / constants.peak_share, value = constants.seconds_per_value * 1e9;
    // The last step has another critical path when products are slow.
    return std::vector<double>{2 * inverse + value + 1, inverse + 3 * value,
                               std::max(4 * inverse, 3 * value + 2.5)};
  };
  const FittedConstants fitted = FitConstants(predict(truth).value(), predict).value();
  EXPECT_NEAR(fitted.peak_share, truth.peak_share, 1e-6);
  EXPECT_NEAR(fitted.seconds_per_value, truth.seconds_per_value, 1e-15);
}

TEST(PublishedFit, ValuesTakeNoLessThanNoTime) {
  const PredictSteps predict = [](const FittedConstants& constants) {
    const double inverse = 1 / constants.peak_share, value = constants.seconds_per_value * 1e9;
    return std::vector<double>{inverse + value, inverse + 2 * value};
  };
  const FittedConstants fitted = FitConstants({1.5, 1.4}, predict).value();
  EXPECT_EQ(fitted.seconds_per_value, 0);
  // The best constant c for c/1.5 and c/1.4 is (1/1.5 + 1/1.4) / (1/1.5^2 + 1/1.4^2).
  EXPECT_NEAR(1 / fitted.peak_share, 1.44656, 1e-4);
}

TEST(PublishedFit, StepsOfProductsAloneLeaveTheOtherConstant) {
  const PredictSteps predict = [](const FittedConstants& constants) {
    return std::vector<double>{3 / constants.peak_share};
  };
  const FittedConstants fitted = FitConstants({4}, predict).value();
  EXPECT_NEAR(fitted.peak_share, 0.75, 1e-9);
  EXPECT_EQ(fitted.seconds_per_value, FittedConstants().seconds_per_value);
}

TEST(PublishedFit, ReturnsTheErrorOfThePrediction) {
  const PredictSteps predict = [](const FittedConstants&) -> absl::StatusOr<std::vector<double>> {
    return absl::InvalidArgumentError("no");
  };
  EXPECT_EQ(FitConstants({1}, predict).status().message(), "no");
}

TEST(PublishedFit, KendallTauCountsPairsInOrder) {
  EXPECT_DOUBLE_EQ(KendallTau({1, 2, 3}, {10, 20, 30}), 1);
  EXPECT_DOUBLE_EQ(KendallTau({1, 2, 3}, {3, 2, 1}), -1);
  EXPECT_DOUBLE_EQ(KendallTau({1, 2, 3}, {1, 3, 2}), 1.0 / 3);
  EXPECT_DOUBLE_EQ(KendallTau({1, 2}, {5, 5}), 0);
  EXPECT_DOUBLE_EQ(KendallTau({1, 1, 2}, {1, 2, 3}), 1);
  EXPECT_DOUBLE_EQ(KendallTau({1}, {1}), 0);
}

TEST(PublishedFit, RegretIsWhatThePickTakesOverTheBest) {
  EXPECT_DOUBLE_EQ(Regret({2, 3, 4}, {5, 4, 6}), 1.5);
  EXPECT_DOUBLE_EQ(Regret({2, 3, 4}, {4, 5, 6}), 1);
}

TEST(PublishedMachine, HardwareIsThatOfTheClusterFile) {
  const Hardware h100 = HardwareOf("h100-2048");
  EXPECT_EQ(h100.device, "H100");
  EXPECT_EQ(h100.gpus_per_host, 8);
  EXPECT_EQ(h100.memory_bytes, 80'000'000'000);
  EXPECT_DOUBLE_EQ(h100.peak, 989e12);
  EXPECT_DOUBLE_EQ(h100.between_hosts.bytes_per_second, 5e10);
}

// One GPU, one microbatch, no recompute: F, I and W of all layers, and what F and I of each block
// take beside their products.
TEST(PublishedMachine, PredictsTheStepOfOneGpuByTheFormula) {
  PublishedRun run{.group = "one", .model = SmallModel(), .stage_layers = {2}};
  const MachineModel machine{.hardware = HardwareOf("a100-512"),
                             .constants = {.peak_share = 0.5, .seconds_per_value = 1e-9}};
  const model::Model model = model::BuildModel(run.model, 1).value();
  const double products = model.FlopsPerMicrobatch() / (0.5 * machine.hardware.peak);
  const double values = 2.0 * 2 * 512 * 1024 * 1e-9;
  EXPECT_NEAR(PredictRun(run, machine)->seconds, products + values, 1e-9);
  // I of each block begins with F again.
  run.recompute = model::Recompute::kFull;
  EXPECT_GT(PredictRun(run, machine)->seconds, products + 1.5 * values);
}

TEST(PublishedMachine, AGroupOfGpusIsFasterThanOneButNotByItsSize) {
  const PublishedRun& run = FirstOf("megatron-7b");
  const MachineModel machine{.hardware = HardwareOf("h100-2048")};
  const double alone = PredictRun(run, machine)->seconds;
  PublishedRun grouped = run;
  grouped.tensor = 4;
  const double together = PredictRun(grouped, machine)->seconds;
  EXPECT_LT(together, alone);
  EXPECT_GT(together, alone / 4);
}

TEST(PublishedMachine, MeasuredLayersPredictTheRunThatTheyCameFrom) {
  const auto run = std::ranges::find_if(Cases().runs, [](const PublishedRun& each) {
    return each.group == "vocabulary" && each.model_name == "gpt-4b-256k" &&
           each.model.context == 2048;
  });
  ASSERT_NE(run, Cases().runs.end());
  const MachineModel machine{.hardware = HardwareOf("a100-512"), .layers = Cases().layers};
  EXPECT_NEAR(PredictRun(*run, machine)->seconds / run->seconds, 1, 0.02);
}

TEST(PublishedMachine, MeasuredRanksPredictTheirStep) {
  for (const MeasuredRanks& ranks : Cases().ranks)
    EXPECT_NEAR(PredictRanks(ranks).value() / ranks.seconds, 1, 0.02) << ranks.name;
}

// Without messages 1f1b takes M + P - 1 times F + B. Without a barrier zb-2p has next to no bubble.
TEST(PublishedMachine, StagesArePredictedAsTheyRan) {
  const MeasuredStages stages{.group = "s",
                              .ranks = 4,
                              .blocks = 2,
                              .microbatches = 16,
                              .forward_seconds = 2,
                              .input_grad_seconds = 2,
                              .weight_grad_seconds = 2};
  EXPECT_NEAR(PredictStages(stages, {.schedule = "1f1b"}).value(), 19 * 6, 1e-9);
  EXPECT_NEAR(PredictStages(stages, {.schedule = "interleaved-1f1b"}).value(), 16 * 6 + 3 * 3,
              1e-9);
  const double barrier = PredictStages(stages, {.schedule = "zb-2p"}).value();
  const double none = PredictStages(stages, {.schedule = "zb-2p", .barrier = false}).value();
  EXPECT_LT(none, barrier);
  EXPECT_LE(none, 16 * 6 * 1.02);
  EXPECT_LE(PlanStages(stages, "auto")->predicted_step_seconds, barrier * 1.01);
}

TEST(PublishedChoice, WaysUseAllDevicesAndDivideTheBatch) {
  const PublishedRun run{.model = {.layers = 3},
                         .tensor = 8,
                         .data = 2,
                         .pipeline = 4,
                         .microbatch = 3,
                         .global_batch = 48};
  const std::vector<Way> ways = WaysFor(run);
  EXPECT_THAT(ways, Contains(Way{.data = 2, .pipeline = 4, .microbatch = 3}));
  EXPECT_THAT(ways, Contains(Way{.data = 8, .pipeline = 1, .microbatch = 2}));
  EXPECT_THAT(ways, Not(Contains(Way{.data = 8, .pipeline = 1, .microbatch = 4})));
  for (const Way& way : ways) {
    EXPECT_EQ(way.data * way.pipeline, 8);
    EXPECT_LE(way.pipeline, 5);
  }
}

TEST(PublishedChoice, IsNoSlowerThanARunThatFits) {
  const PublishedRun run{.group = "small",
                         .model = SmallModel(),
                         .pipeline = 2,
                         .global_batch = 2,
                         .stage_layers = {1, 1}};
  MachineModel machine{.hardware = HardwareOf("h100-2048")};
  const std::optional<ChosenWay> chosen = ChooseFor(run, machine);
  ASSERT_TRUE(chosen.has_value());
  EXPECT_LE(chosen->seconds, PredictRun(run, machine)->seconds * 1.01);
  machine.hardware.memory_bytes = 1;
  EXPECT_FALSE(ChooseFor(run, machine).has_value());
}

}  // namespace
}  // namespace takt::bench
