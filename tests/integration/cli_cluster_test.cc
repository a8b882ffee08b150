// SPDX-License-Identifier: Apache-2.0
// Tests the command line with a cluster of `takt local up`.
#include <signal.h>

#include <cmath>

#include "absl/strings/str_replace.h"
#include "common/base/version.h"
#include "gmock/gmock.h"
#include "tests/integration/command.h"

namespace takt::integration {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr char kJob[] =
    "name: NAME\n"
    "model: {family: emulated, layers: 2, forward_ms: 1, input_grad_ms: 1, weight_grad_ms: 1, "
    "activation_bytes: 4096}\n"
    "batch: {global: 4, microbatch: 1}\n"
    "steps: STEPS\n"
    "parallelism: {pipeline: 2, data: 1, schedule: 1f1b}\n";

constexpr char kGpt[] =
    "name: gpt\n"
    "model: {family: gpt2, layers: 2, hidden: 32, heads: 2, context: 16, vocab: 256}\n"
    "data: {train: {path: text.txt, format: bytes}}\n"
    "batch: {global: 8, microbatch: 2}\n"
    "steps: 4\n";

// Of each worker. It is no even share of two, four or eight cores.
constexpr int kThreads = 3;

// Two workers in the background, found by the commands through XDG_STATE_HOME.
class ClusterTest : public testing::Test {
 protected:
  void SetUp() override {
    const Result up = Takt({"local", "up", "--workers", "2", "--threads", absl::StrCat(kThreads)});
    ASSERT_EQ(up.end, "exit status 0") << up.err;
  }
  void TearDown() override {
    const Result down = Takt({"local", "down"});
    EXPECT_EQ(down.end, "exit status 0") << down.err;
    EXPECT_EQ(CountProcesses(directory_.Path("")), 0);
  }

  struct Result {
    std::string end, out, err;
  };
  std::unique_ptr<Command> Start(const std::vector<std::string>& arguments) {
    return std::make_unique<Command>(
        "takt", arguments, std::vector<std::string>{"XDG_STATE_HOME=" + directory_.Path("state")});
  }
  Result Takt(const std::vector<std::string>& arguments) {
    const auto command = Start(arguments);
    std::string end = command->Wait();
    return {std::move(end), command->out(), command->err()};
  }
  json Json(std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"-o", "json"});
    const Result result = Takt(arguments);
    EXPECT_EQ(result.end, "exit status 0") << result.err;
    return json::parse(result.out);
  }
  std::string Job(const std::string& name, int steps) {
    return directory_.Write(
        name + ".yaml",
        absl::StrReplaceAll(kJob, {{"NAME", name}, {"STEPS", absl::StrCat(steps)}}));
  }

  const TestDirectory directory_;
};

TEST_F(ClusterTest, JobGoesFromSubmitToDelete) {
  const Result submitted = Takt({"submit", Job("a", 3), "--wait", "-o", "json"});
  EXPECT_EQ(submitted.end, "exit status 0") << submitted.err;
  EXPECT_EQ(json::parse(submitted.out)["state"], "SUCCEEDED");
  EXPECT_EQ(Json({"job", "a"})["last_step"]["step"], 3);
  EXPECT_EQ(Json({"jobs"})["jobs"].size(), 1u);
  EXPECT_EQ(JsonLines(Takt({"watch", "a", "-o", "json"}).out).size(), 3u);
  EXPECT_EQ(Takt({"wait", "a"}).end, "exit status 0");
  EXPECT_EQ(Takt({"submit", Job("a", 3)}).end, "exit status 2");  // the name is taken
  EXPECT_EQ(Takt({"delete", "a"}).end, "exit status 0");
  for (const char* command : {"job", "watch", "wait", "cancel", "delete", "logs"}) {
    EXPECT_EQ(Takt({command, "a"}).end, "exit status 4") << command;
  }
}

TEST_F(ClusterTest, EvaluatesACheckpointByAJobThatOnlyGoesForward) {
  std::string text;
  for (int i = 0; i < 2000; ++i) text += static_cast<char>('a' + i * i % 23);
  const std::string data = directory_.Write("text.txt", text);
  const std::string job = directory_.Write(
      "gpt.yaml",
      "name: gpt\n"
      "model: {family: gpt2, layers: 2, hidden: 32, heads: 2, context: 16, vocab: 256}\n"
      "data: {train: {path: text.txt, format: bytes},\n"
      "       validation: {path: text.txt, format: bytes, batches: 2}}\n"
      "batch: {global: 8, microbatch: 2}\n"
      "steps: 4\n"
      "checkpoint: {directory: checkpoints}\n"
      "parallelism: {pipeline: 2, data: 1, schedule: zb-h1}\n");
  ASSERT_EQ(Takt({"submit", job, "--wait"}).end, "exit status 0");
  const json trained = Json({"job", "gpt"})["last_step"];
  const json score = Json({"eval", job});
  EXPECT_EQ(score["loss"], trained["validation_loss"]);  // the same bits
  EXPECT_EQ(score["tokens"], 2 * 8 * 16);
  EXPECT_DOUBLE_EQ(score["bits_per_byte"], score["loss"].get<double>() / std::log(2.0));
  EXPECT_EQ(Json({"jobs"})["jobs"].size(), 1u);  // the evaluation is deleted
  // These are the same windows on this machine.
  const json here = Json({"eval", directory_.Path("checkpoints"), "--data", data, "--format",
                          "bytes", "--context", "16", "--windows", "16"});
  EXPECT_NEAR(here["loss"].get<double>(), score["loss"].get<double>(), 1e-5);
  // What is to be scored may be given, and a job without steps leads here.
  EXPECT_EQ(Json({"eval", job, "--batches", "3", "--step", "4"})["tokens"], 3 * 8 * 16);
  // Workers read how many bytes of text a token of it stands for.
  std::string tokens;
  for (const char c : text) tokens += {c, '\0'};
  const std::string set = directory_.Write("set.bin", tokens);
  directory_.Write("set.bin.json", R"({"version": 1, "tokens": 2000, "bytes": 7000})");
  const json tokenized = Json({"eval", job, "--data", set, "--format", "uint16"});
  EXPECT_EQ(tokenized["loss"], score["loss"]);
  EXPECT_DOUBLE_EQ(tokenized["bits_per_byte"], score["bits_per_byte"].get<double>() / 3.5);
  const Result untrained = Takt({"submit", job, "--set", "steps=0", "--set", "name=other"});
  EXPECT_EQ(untrained.end, "exit status 2");
  EXPECT_THAT(untrained.err, HasSubstr("takt eval"));
  const Result too_many = Takt({"eval", job, "--batches", "1000"});
  EXPECT_EQ(too_many.end, "exit status 2");
  EXPECT_THAT(too_many.err, HasSubstr("data.validation.batches"));
}

TEST_F(ClusterTest, InterruptedWatchLeavesTheJobAlone) {
  ASSERT_EQ(Takt({"submit", Job("b", 1000000)}).end, "exit status 0");
  const auto watch = Start({"watch", "b"});
  ASSERT_TRUE(watch->WaitForText("step 1/")) << watch->err();
  watch->Signal(SIGINT);
  EXPECT_EQ(watch->Wait(), "exit status 6") << watch->err();
  EXPECT_EQ(Json({"job", "b"})["state"], "RUNNING");
  EXPECT_EQ(Takt({"delete", "b"}).end, "exit status 1");  // it still runs
  EXPECT_EQ(Takt({"cancel", "b"}).end, "exit status 0");
  EXPECT_EQ(Takt({"wait", "b"}).end, "exit status 1");
  EXPECT_EQ(Json({"job", "b"})["state"], "CANCELLED");
}

TEST_F(ClusterTest, DrainedWorkerTakesNoJobAndTheJobSaysWhatItWaitsFor) {
  EXPECT_EQ(Json({"drain", "worker-0"})["drained"], true);
  ASSERT_EQ(Takt({"submit", Job("c", 2)}).end, "exit status 0");
  const auto watch = Start({"watch", "c"});
  EXPECT_TRUE(watch->WaitForText("drained")) << watch->err();
  EXPECT_EQ(Json({"job", "c"})["state"], "QUEUED");
  EXPECT_EQ(Json({"undrain", "worker-0"})["drained"], false);
  EXPECT_EQ(watch->Wait(), "exit status 0") << watch->err();
  EXPECT_EQ(Takt({"drain", "nobody"}).end, "exit status 4");
}

TEST_F(ClusterTest, ValidateOnlyStoresNothing) {
  EXPECT_EQ(Takt({"submit", Job("d", 2), "--validate-only"}).end, "exit status 0");
  EXPECT_EQ(Takt({"job", "d"}).end, "exit status 4");
  const Result refused =
      Takt({"submit", Job("d", 2), "--validate-only", "--set", "parallelism.pipeline=3"});
  EXPECT_EQ(refused.end, "exit status 2") << refused.err;
}

TEST_F(ClusterTest, LogsOfWorkersAreReadAfterwards) {
  ASSERT_EQ(Takt({"submit", Job("e", 2), "--wait"}).end, "exit status 0");
  const Result logs = Takt({"logs", "e", "-f"});
  EXPECT_EQ(logs.end, "exit status 0") << logs.err;
  EXPECT_THAT(logs.out, HasSubstr("worker-0"));
}

TEST_F(ClusterTest, WhatWasMeasuredIsDrawnAndExplained) {
  const std::string long_steps =
      absl::StrReplaceAll(ReadFile(Job("f", 6)), {{"forward_ms: 1", "forward_ms: 20"}});
  ASSERT_EQ(Takt({"submit", directory_.Write("f.yaml", long_steps), "--wait"}).end,
            "exit status 0");
  // Traces come after everything that a job waits for.
  json traced;
  for (int tries = 0; tries < 1000 && traced["last_step"] != 6; ++tries) {
    const std::string file = directory_.Path(absl::StrCat("trace", tries, ".json"));
    const Result result = Takt({"trace", "f", "--last", "6", "-f", "perfetto", file, "-o", "json"});
    if (result.end == "exit status 0") traced = json::parse(result.out);
  }
  ASSERT_EQ(traced["last_step"], 6);
  EXPECT_EQ(traced["ranks"], 2);
  EXPECT_THAT(ReadFile(traced["file"]), HasSubstr("\"1F3\""));
  EXPECT_EQ(Takt({"trace", "f", traced["file"]}).end, "exit status 2");  // it is there already
  EXPECT_EQ(Takt({"trace", "f", "--steps", "70..80", directory_.Path("none")}).end,
            "exit status 4");
  EXPECT_EQ(Takt({"trace", "nobody", directory_.Path("none")}).end, "exit status 4");

  const json explained = Json({"explain", "f", "--step", "5"});
  double sum = 0;
  for (const auto& [part, seconds] : explained["parts"].items()) sum += seconds.get<double>();
  const double step_seconds = explained["step_seconds"];
  EXPECT_NEAR(sum, step_seconds, 1e-9);
  // What the layers of one of two stages are told to take.
  EXPECT_GE(explained["parts"]["compute"].get<double>(), 4 * 0.022);
  EXPECT_THAT(Takt({"explain", "f"}).out, HasSubstr("step 6 took "));
}

TEST_F(ClusterTest, WhatIsMeasuredIsWhatPlansTake) {
  directory_.Write("text.txt", std::string(8192, 'a'));
  const std::string job = directory_.Write("gpt.yaml", kGpt);
  EXPECT_EQ(Json({"plan", job, "--no-measure"})["profile"]["measured"].size(), 0u);
  const json known = Json({"profile", job, "--time", "1"});
  EXPECT_EQ(known["layers"].size(), 2 * 3u);  // embedding, block, head; alone and beside another
  for (const json& layer : known["layers"]) {
    EXPECT_EQ(layer["origin"], "measured") << layer;
    EXPECT_GT(layer["forward_seconds"], 0) << layer;
    EXPECT_EQ(layer["threads"], kThreads) << layer;
  }
  EXPECT_GE(known["ranks"].size(), 2u);
  EXPECT_GE(known["messages"].size(), 1u);
  EXPECT_EQ(Json({"jobs"})["jobs"].size(), 0u);
  const json plan = Json({"plan", job});
  EXPECT_GE(plan["profile"]["measured"].size(), 3u) << plan["profile"];
  // Nothing of the layers is left to guess.
  for (const json& guess : plan["profile"]["guessed"])
    EXPECT_FALSE(absl::StartsWith(guess.get<std::string>(), "gpt2")) << guess;
}

TEST_F(ClusterTest, AJobThatNeverRanHasNothingToShow) {
  EXPECT_EQ(Takt({"drain", "worker-0"}).end, "exit status 0");
  ASSERT_EQ(Takt({"submit", Job("g", 2)}).end, "exit status 0");
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"trace", "g", directory_.Path("g.html")}, {"explain", "g"}}) {
    const Result result = Takt(command);
    EXPECT_EQ(result.end, "exit status 1");
    EXPECT_THAT(result.err, HasSubstr("no step of it has run yet"));
  }
  EXPECT_EQ(Takt({"cancel", "g"}).end, "exit status 0");
}

TEST_F(ClusterTest, WorkersAndVersionAreListed) {
  const json workers = Json({"workers"})["workers"];
  ASSERT_EQ(workers.size(), 2u);
  EXPECT_EQ(workers[0]["name"], "worker-0");
  EXPECT_EQ(workers[0]["threads"], kThreads);
  EXPECT_EQ(Json({"version"})["coordinator"]["protocol_version"], kProtocolVersion);
}

TEST_F(ClusterTest, SecondUpOnTheSameStateIsRefused) {
  const Result up = Takt({"local", "up"});
  EXPECT_EQ(up.end, "exit status 2");
  EXPECT_THAT(up.err, HasSubstr("takt local down"));
}

}  // namespace
}  // namespace takt::integration
