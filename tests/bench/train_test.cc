// SPDX-License-Identifier: Apache-2.0
// Tests that `takt-bench train` runs with virtual ranks, what it reports, and where options may
// stand. Speed is not tested.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/command.h"

namespace takt::bench {
namespace {

using integration::Command;
using nlohmann::json;

json Train(int virtual_ranks, const std::string& schedule,
           const std::vector<std::string>& more = {}, const std::string& model = "tiny") {
  std::vector<std::string> arguments = {"train",
                                        "--model",
                                        model,
                                        "--context",
                                        "16",
                                        "--batch",
                                        "8",
                                        "--microbatch",
                                        "1",
                                        "--steps",
                                        "2",
                                        "--schedule",
                                        schedule,
                                        "--virtual-ranks",
                                        absl::StrCat(virtual_ranks),
                                        "-o",
                                        "json"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  Command command("takt-bench", arguments);
  EXPECT_EQ(command.Wait(), "exit status 0") << command.err();
  return json::parse(command.out());
}

TEST(TrainBench, LossesHaveTheSameBitsForAnyNumberOfVirtualRanks) {
  const json alone = Train(1, "1f1b");
  EXPECT_EQ(alone["losses"].size(), 3U);
  for (const int ranks : {2, 4}) {
    const json several = Train(ranks, ranks == 2 ? "zb-v" : "1f1b");
    EXPECT_EQ(several["losses"], alone["losses"]) << ranks;
    EXPECT_EQ(several["same_losses"], true);
    EXPECT_EQ(several["stages"].size(), 4U);
    EXPECT_GT(several["prediction"]["step_seconds"], 0);
  }
}

TEST(TrainBench, LlamaInBf16TakesTheMemoryThatItsPlanPredicts) {
  const json report = Train(2, "zb-v", {"--precision", "bf16"}, "tiny-llama");
  EXPECT_EQ(report["same_losses"], true);
  const double predicted = report["predicted_bytes"];
  EXPECT_NEAR(report["allocated_bytes"].get<double>(), predicted, 0.03 * predicted);
}

TEST(TrainBench, ItsCostsArePredictedWith) {
  for (const std::string schedule : {"zb-h1", "dualpipe-v"}) {
    const integration::TestDirectory directory;
    const std::string costs = directory.Path("costs.json");
    const json measured = Train(2, schedule, {"--costs", costs});
    Command simulate("takt", {"-o", "json", "schedule", "simulate", schedule, "--ranks", "2",
                              "--microbatches", "8", "--costs", costs});
    ASSERT_EQ(simulate.Wait(), "exit status 0") << simulate.err();
    const json predicted = json::parse(simulate.out());
    EXPECT_EQ(predicted["prediction_from"],
              "tiny f32 on cpu, 2 virtual ranks, " + schedule + ", microbatches of 1 x 16 tokens");
    EXPECT_DOUBLE_EQ(predicted["step_time"].get<double>(),
                     measured["prediction"]["step_seconds"].get<double>());
  }
}

TEST(TaktBench, TakesItsOutputBeforeTheSubcommandToo) {
  Command command("takt-bench", {"-o", "json", "count", "--model", "gpt2-124m"});
  ASSERT_EQ(command.Wait(), "exit status 0") << command.err();
  const json report = json::parse(command.out());
  for (const json& row : report["rows"]) {
    EXPECT_EQ(row["goal_launches"].is_null(), row["kind"] != "total");
    EXPECT_EQ(row["holds"].is_null(), row["kind"] != "total");
  }
  Command text("takt-bench", {"-o", "json", "count", "--model", "gpt2-124m", "-o", "text"});
  ASSERT_EQ(text.Wait(), "exit status 0") << text.err();
  EXPECT_NE(text.out().find("launches"), std::string::npos);
}

TEST(TrainBench, MoreStagesThanLayersAreRefused) {
  Command command("takt-bench", {"train", "--model", "tiny", "--virtual-ranks", "8"});
  EXPECT_EQ(command.Wait(), "exit status 2");
  EXPECT_NE(command.err().find("parallelism.pipeline is 8"), std::string::npos) << command.err();
}

}  // namespace
}  // namespace takt::bench
