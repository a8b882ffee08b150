// SPDX-License-Identifier: Apache-2.0
// `takt local run` with real daemons: what it prints, how it ends, and that nothing survives it.
#include <signal.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/integration/command.h"

namespace takt::integration {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr char kEmulated[] =
    "name: emulated\n"
    "model: {family: emulated, layers: 4, forward_ms: 1, input_grad_ms: 1, weight_grad_ms: 1, "
    "activation_bytes: 4096}\n"
    "batch: {global: 4, microbatch: 1}\n"
    "steps: 5\n"
    "parallelism: {pipeline: 2, data: 1, schedule: 1f1b}\n";

constexpr char kGpt[] =
    "name: gpt\n"
    "model: {family: gpt2, layers: 2, hidden: 32, heads: 2, context: 16, vocab: 256}\n"
    "data: {train: {path: text.txt, format: bytes}, shuffle: true}\n"
    "batch: {global: 4, microbatch: 2}\n"
    "optimizer: {adamw: {learning_rate: 1.0e-3}}\n"
    "steps: 4\n"
    "parallelism: {pipeline: 2, data: 1, schedule: gpipe}\n"
    "seed: 3\n";

class LocalRunTest : public testing::Test {
 protected:
  std::string Emulated(const std::string& more = "") {
    return directory_.Write("emulated.yaml", kEmulated + more);
  }
  std::string state() const { return directory_.Path("state"); }

  const TestDirectory directory_;
};

TEST_F(LocalRunTest, StreamsEveryStepAndLeavesNothingBehind) {
  Command run("takt", {"-o", "json", "local", "run", Emulated(), "--state", state()});
  EXPECT_EQ(run.Wait(), "exit status 0") << run.err();
  const std::vector<json> steps = JsonLines(run.out());
  ASSERT_EQ(steps.size(), 5u);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i]["step"], i + 1);
    EXPECT_EQ(steps[i]["schedule"], "1f1b");
    for (const char* field : {"loss", "grad_norm", "learning_rate", "tokens", "tokens_per_second",
                              "step_seconds", "bubble_fraction"}) {
      EXPECT_TRUE(steps[i][field].is_number()) << field;
    }
  }
  EXPECT_EQ(CountProcesses(state()), 0);
}

TEST_F(LocalRunTest, TrainsOnAFileBesideTheJobFromAnyDirectory) {
  directory_.Write("text.txt", std::string(4096, 'a'));
  Command run("takt", {"-o", "json", "local", "run", directory_.Write("gpt.yaml", kGpt), "--state",
                       state()});
  EXPECT_EQ(run.Wait(), "exit status 0") << run.err();
  const std::vector<json> steps = JsonLines(run.out());
  ASSERT_EQ(steps.size(), 4u);
  EXPECT_LT(steps[3]["loss"].get<double>(), steps[0]["loss"].get<double>());
}

TEST_F(LocalRunTest, TrainsTemplatesThatNeedNothingElse) {
  const std::map<std::string, std::size_t> steps_of = {
      {"tiny", 50}, {"auto", 50}, {"emulated", 20}, {"vocabulary", 2}};
  for (const auto& [from, steps] : steps_of) {
    const std::string name = "my-" + from;
    Command init("takt", {"init", name, "--from", from, "--out", directory_.Path("")});
    ASSERT_EQ(init.Wait(), "exit status 0") << init.err();
    Command run("takt", {"-o", "json", "local", "run", directory_.Path(name + ".yaml"), "--set",
                         absl::StrCat("steps=", steps), "--state", state()});
    EXPECT_EQ(run.Wait(), "exit status 0") << run.err();
    EXPECT_EQ(JsonLines(run.out()).size(), steps);
  }
}

// kjv.txt and val.txt need packages of Debian; other text does as well. A smaller batch saves time.
TEST_F(LocalRunTest, TrainsTemplatesOnAText) {
  directory_.Write("kjv.txt", std::string(64 << 10, 'a'));
  directory_.Write("val.txt", std::string(64 << 10, 'b'));
  for (const char* from : {"kjv", "experts", "balanced"}) {
    const std::string name = absl::StrCat("my-", from);
    Command init("takt", {"init", name, "--from", from, "--out", directory_.Path("")});
    ASSERT_EQ(init.Wait(), "exit status 0") << init.err();
    Command run("takt", {"-o", "json", "local", "run", directory_.Path(name + ".yaml"), "--set",
                         "steps=1", "--set", "batch.global=8", "--state", state()});
    EXPECT_EQ(run.Wait(), "exit status 0") << from << ": " << run.err();
    EXPECT_EQ(JsonLines(run.out()).size(), 1u) << from;
  }
}

// Returns a token file as llm.c writes it, of ids from 0 to 50,000.
std::string LlmcShard() {
  constexpr int kTokens = 8192;
  std::vector<std::int32_t> header(256);
  header[0] = 20240520;  // uint16 follows
  header[1] = 1;
  header[2] = kTokens;
  std::vector<std::uint16_t> tokens(kTokens);
  for (int i = 0; i < kTokens; ++i) tokens[i] = static_cast<std::uint16_t>(i * 7919 % 50'000);
  std::string shard(4 * header.size() + 2 * tokens.size(), '\0');
  std::memcpy(shard.data(), header.data(), 4 * header.size());
  std::memcpy(shard.data() + 4 * header.size(), tokens.data(), 2 * tokens.size());
  return shard;
}

// The model has its vocabulary, and smaller blocks: those of 768 in windows of 1,024 would take
// minutes on two cores, and checkpoints of 1.5 GB. Data, precision, plan and curves are the
// template's own.
TEST_F(LocalRunTest, TrainsTheTemplateOfGpt2WithSmallBlocks) {
  std::filesystem::create_directory(directory_.Path("fineweb"));
  directory_.Write("fineweb/fineweb_train_000001.bin", LlmcShard());
  directory_.Write("fineweb/fineweb_val_000000.bin", LlmcShard());
  Command init("takt", {"init", "small", "--from", "gpt2-124m", "--out", directory_.Path("")});
  ASSERT_EQ(init.Wait(), "exit status 0") << init.err();
  std::vector<std::string> run = {"-o",      "json", "local", "run", directory_.Path("small.yaml"),
                                  "--state", state()};
  for (const char* set : {"model.layers=2", "model.hidden=64", "model.heads=4", "model.context=64",
                          "batch.global=8", "steps=2", "optimizer.lr_schedule.warmup_steps=1"}) {
    run.emplace_back("--set");
    run.emplace_back(set);
  }
  Command train("takt", run);
  EXPECT_EQ(train.Wait(), "exit status 0") << train.err();
  EXPECT_EQ(JsonLines(train.out()).size(), 2u);
  EXPECT_TRUE(std::filesystem::exists(directory_.Path("small/latest")));
  EXPECT_FALSE(std::filesystem::is_empty(directory_.Path("small-curves")));
}

TEST_F(LocalRunTest, WritesTheTimelineOfItsLastSteps) {
  const std::string page = directory_.Path("timeline.html");
  Command run("takt", {"local", "run", Emulated(), "--state", state(), "--trace", page});
  EXPECT_EQ(run.Wait(), "exit status 0") << run.err();
  EXPECT_THAT(run.err(), HasSubstr(page + ": steps "));
  EXPECT_THAT(ReadFile(page), HasSubstr("job emulated, step"));

  Command again("takt", {"local", "run", Emulated(), "--state", state(), "--trace", page});
  EXPECT_EQ(again.Wait(), "exit status 2");
  EXPECT_THAT(again.err(), HasSubstr("nothing is overwritten"));
}

TEST_F(LocalRunTest, WritesTheTimelineOfAJobOfOneShortStep) {
  const std::string page = directory_.Path("timeline.html");
  Command run("takt", {"local", "run", Emulated(), "--set", "steps=1", "--state", state(),
                       "--trace", page});
  EXPECT_EQ(run.Wait(), "exit status 0") << run.err();
  EXPECT_THAT(run.err(), HasSubstr(page + ": step 1"));
  EXPECT_THAT(ReadFile(page), HasSubstr("job emulated, step 1"));
}

TEST_F(LocalRunTest, PlanForWorkersOfThisMachineMeasuresThemAndLeavesNothingBehind) {
  directory_.Write("text.txt", std::string(4096, 'a'));
  const std::string temporary = directory_.Path("tmp");
  std::filesystem::create_directory(temporary);
  Command plan("takt", {"plan", directory_.Write("gpt.yaml", kGpt), "--workers", "2", "-o", "json"},
               {"TMPDIR=" + temporary});
  EXPECT_EQ(plan.Wait(), "exit status 0") << plan.err();
  EXPECT_GE(json::parse(plan.out())["profile"]["measured"].size(), 3u) << plan.err();
  EXPECT_TRUE(std::filesystem::is_empty(temporary));
  EXPECT_EQ(CountProcesses(temporary), 0);
}

TEST_F(LocalRunTest, CanBeRepeatedOnTheSameState) {
  std::vector<std::string> losses;
  directory_.Write("text.txt", std::string(4096, 'a'));
  const std::string job = directory_.Write("gpt.yaml", kGpt);
  for (int i = 0; i < 2; ++i) {
    Command run("takt", {"-o", "json", "local", "run", job, "--state", state()});
    ASSERT_EQ(run.Wait(), "exit status 0") << run.err();
    std::string stream;
    for (const json& step : JsonLines(run.out()))
      absl::StrAppend(&stream, step["loss"].dump(), " ");
    losses.push_back(stream);
  }
  EXPECT_EQ(losses[0], losses[1]);
}

TEST_F(LocalRunTest, WorksUnderAStateTooDeepForASocket) {
  const std::string deep = directory_.Path(std::string(150, 'd'));
  Command run("takt", {"local", "run", Emulated(), "--state", deep});
  EXPECT_EQ(run.Wait(), "exit status 0") << run.err();
}

TEST_F(LocalRunTest, InterruptCancelsTheJobAndExitsWith1) {
  Command run("takt", {"local", "run", Emulated(), "--set", "steps=1000000", "--state", state()});
  ASSERT_TRUE(run.WaitForText("step 1/")) << run.err();
  run.Signal(SIGINT);
  EXPECT_EQ(run.Wait(), "exit status 1") << run.err();
  EXPECT_THAT(run.err(), HasSubstr("CANCELLED"));
  EXPECT_EQ(CountProcesses(state()), 0);
}

TEST_F(LocalRunTest, SecondInterruptKillsAtOnce) {
  Command run("takt", {"local", "run", Emulated(), "--set", "steps=1000000", "--state", state()});
  ASSERT_TRUE(run.WaitForText("step 1/")) << run.err();
  run.Signal(SIGINT);
  run.Signal(SIGTERM);  // not the same number, which the kernel would merge with the first
  EXPECT_EQ(run.Wait(), "exit status 1") << run.err();
  EXPECT_TRUE(WaitForNoProcess(state()));
}

TEST_F(LocalRunTest, ChildrenDoNotSurviveItsKill) {
  Command run("takt", {"local", "run", Emulated(), "--set", "steps=1000000", "--state", state()});
  ASSERT_TRUE(run.WaitForText("step 1/")) << run.err();
  EXPECT_GE(CountProcesses(state()), 4);  // takt, the coordinator, two workers
  run.Signal(SIGKILL);
  EXPECT_EQ(run.Wait(), "signal 9 (Killed)");
  EXPECT_TRUE(WaitForNoProcess(state()));

  // What it left in the store is cleared away by the next run of that name.
  Command again("takt", {"local", "run", Emulated(), "--state", state()});
  EXPECT_EQ(again.Wait(), "exit status 0") << again.err();
}

TEST_F(LocalRunTest, LostWorkerFailsTheJobWithTheReason) {
  Command run("takt", {"local", "run", Emulated(), "--set", "steps=1000000", "--state", state()});
  ASSERT_TRUE(run.WaitForText("step 1/")) << run.err();
  std::ifstream pid_file(state() + "/pids/worker-1.pid");
  pid_t pid = 0;
  ASSERT_TRUE(pid_file >> pid);
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  EXPECT_EQ(run.Wait(), "exit status 1") << run.err();
  EXPECT_THAT(run.err(), HasSubstr("worker-1"));
  EXPECT_THAT(run.err(), HasSubstr("FAILED"));
}

TEST_F(LocalRunTest, SecondOneOnTheSameStateIsRefused) {
  Command run("takt", {"local", "run", Emulated(), "--set", "steps=1000000", "--state", state()});
  ASSERT_TRUE(run.WaitForText("step 1/")) << run.err();
  Command second("takt", {"local", "run", Emulated(), "--state", state()});
  EXPECT_EQ(second.Wait(), "exit status 2");
  EXPECT_THAT(second.err(), HasSubstr("no other local cluster may run on it"));
}

TEST_F(LocalRunTest, TemporaryStateGoesWithSuccess) {
  const TestDirectory temporary;
  Command run("takt", {"local", "run", Emulated()}, {"TMPDIR=" + temporary.Path("")});
  EXPECT_EQ(run.Wait(), "exit status 0") << run.err();
  EXPECT_TRUE(std::filesystem::is_empty(temporary.Path("")));
}

}  // namespace
}  // namespace takt::integration
