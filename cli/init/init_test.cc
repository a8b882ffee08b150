// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <fstream>
#include <iterator>

#include "cli/job/job_input.h"
#include "cli/testing/fake_coordinator.h"
#include "cli/testing/test_directory.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"

namespace takt::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// This is the shape of Llama 3.2 1B.
constexpr char kLlamaConfig[] = R"({"model_type": "llama", "hidden_act": "silu",
    "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
    "tie_word_embeddings": true, "vocab_size": 128256})";

class InitTest : public testing::Test {
 protected:
  Outcome Init(const std::string& name, std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"init", name, "--out", directory_.path()});
    return RunTakt(more);
  }
  std::string Read(const std::string& name) const {
    std::ifstream in(directory_.Path(name));
    return {std::istreambuf_iterator<char>(in), {}};
  }

  const TestDirectory directory_;
};

std::vector<std::string> Templates() {
  std::vector<std::string> names;
  const json listed = json::parse(RunTakt({"-o", "json", "init"}).out);
  for (const json& each : listed["templates"]) names.push_back(each["name"].get<std::string>());
  return names;
}

TEST_F(InitTest, ListsEveryExample) {
  std::vector<std::string> examples;
  for (const auto& entry :
       fs::directory_iterator(std::string(TAKT_SOURCE_DIR) + "/deploy/examples")) {
    if (entry.path().extension() == ".yaml") examples.push_back(entry.path().stem().string());
  }
  EXPECT_THAT(Templates(), testing::UnorderedElementsAreArray(examples));
  const std::string text = RunTakt({"init"}).out;
  for (const std::string& example : examples) EXPECT_THAT(text, HasSubstr("\n" + example + " "));
  EXPECT_THAT(text, HasSubstr("  The smallest job that trains"));
}

TEST_F(InitTest, EveryTemplateIsAValidJobOfTheNewName) {
  fs::create_directory(directory_.Path("llama"));
  directory_.Write("llama/config.json", kLlamaConfig);
  for (const std::string& from : Templates()) {
    const std::string name = "my-" + from, path = directory_.Path(name + ".yaml");
    const Outcome outcome = Init(name, {"--from", from});
    ASSERT_EQ(outcome.code, ExitCode::kDone) << outcome.err;
    EXPECT_THAT(outcome.out, StartsWith(path + "\n"));
    EXPECT_THAT(Read(name + ".yaml"),
                AllOf(StartsWith("# yaml-language-server: $schema=/usr/share/takt/"),
                      HasSubstr(" " + name + ".yaml"), Not(HasSubstr(" " + from + ".yaml")),
                      Not(HasSubstr("export " + from)), Not(HasSubstr("generate " + from))));
    const absl::StatusOr<PreparedJob> job = PrepareJob({.path = path});
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_EQ(job->spec.name(), name);
    if (job->spec.has_checkpoint()) {
      EXPECT_EQ(job->spec.checkpoint().directory(), name);
    }
    EXPECT_THAT(job->spec.logging().tensorboard(), Not(StartsWith(from)));
    for (const v1::CorpusSpec& corpus : job->spec.data().train()) {
      if (corpus.path() == "tiny.txt") {
        EXPECT_TRUE(fs::exists(directory_.Path("tiny.txt")));
      }
    }
  }
}

TEST_F(InitTest, TheJobForGpusIsPlannedForEightOfThem) {
  Init("big", {"--from", "gpus"});
  const Outcome outcome =
      RunTakt({"-o", "json", "plan", directory_.Path("big.yaml"), "--cluster",
               std::string(TAKT_SOURCE_DIR) + "/deploy/examples/clusters/b200-8.yaml", "--set",
               "batch.global=16", "--top", "1"});
  ASSERT_EQ(outcome.code, ExitCode::kDone) << outcome.err;
  EXPECT_EQ(json::parse(outcome.out)["candidates"][0]["pipeline"], 8);
}

TEST_F(InitTest, OverwritesNothingWithoutForce) {
  const Outcome first = Init("j");
  EXPECT_EQ(first.out, directory_.Path("j.yaml") + "\n" + directory_.Path("tiny.txt") + "\n");
  directory_.Write("j.yaml", "mine");
  directory_.Write("tiny.txt", "my text");
  const Outcome again = Init("j");
  EXPECT_EQ(again.code, ExitCode::kInvalidInput);
  EXPECT_THAT(again.err, AllOf(HasSubstr("NAME"), HasSubstr("/j.yaml"), HasSubstr("--force")));
  EXPECT_EQ(Read("j.yaml"), "mine");

  const Outcome forced = Init("j", {"--force"});
  EXPECT_EQ(forced.code, ExitCode::kDone) << forced.err;
  EXPECT_EQ(forced.out, directory_.Path("j.yaml") + "\n");
  EXPECT_THAT(forced.err, HasSubstr("/tiny.txt is there already and is left as it is"));
  EXPECT_THAT(Read("j.yaml"), HasSubstr("\nname: j\n"));
  EXPECT_EQ(Read("tiny.txt"), "my text");
}

TEST_F(InitTest, BringsTheScriptThatATemplateNames) {
  EXPECT_THAT(Init("j", {"--from", "kjv"}).out, HasSubstr("/make-kjv-text.sh\n"));
  EXPECT_THAT(Read("make-kjv-text.sh"), StartsWith("#!/usr/bin/env bash\n"));
}

TEST_F(InitTest, RefusesWhatItCannotWrite) {
  for (const char* name : {"../j", "a/b", "a b", ".j", "null"}) {
    const Outcome outcome = Init(name);
    EXPECT_EQ(outcome.code, ExitCode::kInvalidInput) << name;
    EXPECT_THAT(outcome.err, testing::ContainsRegex("NAME|name")) << name;
  }
  EXPECT_EQ(Init("j", {"--from", "bogus"}).code, ExitCode::kInvalidInput);
  EXPECT_TRUE(fs::is_empty(directory_.path()));
  const Outcome outcome = RunTakt({"init", "j", "--out", directory_.Path("no")});
  EXPECT_EQ(outcome.code, ExitCode::kInvalidInput);
  EXPECT_THAT(outcome.err, HasSubstr("must be there"));
}

TEST(Schema, IsOneJsonObject) {
  const json schema = json::parse(RunTakt({"schema"}).out);
  EXPECT_EQ(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
  const std::string line = RunTakt({"-o", "json", "schema"}).out;
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  EXPECT_EQ(json::parse(line), schema);
}

}  // namespace
}  // namespace takt::cli
