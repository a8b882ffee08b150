// SPDX-License-Identifier: Apache-2.0
// Tests `takt generate` and `takt eval` with the real worker.
#include <cmath>
#include <string>
#include <vector>

#include "cli/testing/test_checkpoint.h"
#include "gmock/gmock.h"
#include "tests/integration/command.h"

namespace takt::integration {
namespace {

using nlohmann::json;

const std::string kModel = cli::GoldenModel("gpt2-tiny");  // 256 tokens, 32 positions

std::vector<std::string> Generation(const std::string& model, const std::string& prompt) {
  return {"-o", "json", "generate", model, "--prompt", prompt, "--tokenizer", "bytes"};
}

TEST(Model, GeneratesTheSameTextFromAFolderAndFromACheckpoint) {
  const TestDirectory directory;
  cli::WriteCheckpoint(directory.Path("checkpoints"), 3, kModel);
  std::vector<json> results;
  for (const std::string& model : {kModel, directory.Path("checkpoints")}) {
    Command generate("takt", Generation(model, "abcd"));
    ASSERT_EQ(generate.Wait(), "exit status 0") << generate.err();
    results.push_back(json::parse(generate.out()));
  }
  EXPECT_EQ(results[0]["tokens"].size(), 28U);  // up to the last position
  EXPECT_EQ(results[0]["tokens"], results[1]["tokens"]);
  EXPECT_EQ(results[0]["text"], results[1]["text"]);
}

TEST(Model, DrawsTheSameTokensWithTheSameSeed) {
  const auto tokens_of = [](const char* seed) {
    std::vector<std::string> arguments = Generation(kModel, "abcd");
    for (const char* const more : {"--temperature", "1.5", "--top-p", "0.9", "--seed", seed})
      arguments.emplace_back(more);
    Command generate("takt", arguments);
    EXPECT_EQ(generate.Wait(), "exit status 0") << generate.err();
    return json::parse(generate.out())["tokens"];
  };
  EXPECT_EQ(tokens_of("1"), tokens_of("1"));
  EXPECT_NE(tokens_of("1"), tokens_of("2"));
}

TEST(Model, SaysWhatDoesNotFitTheModel) {
  Command too_long("takt", Generation(kModel, std::string(40, 'a')));
  EXPECT_EQ(too_long.Wait(), "exit status 2");
  EXPECT_THAT(too_long.err(), testing::HasSubstr("--prompt"));
  const TestDirectory directory;
  directory.Write("config.json", R"({"model_type": "bert"})");
  Command unknown("takt", Generation(directory.Path(""), "a"));
  EXPECT_EQ(unknown.Wait(), "exit status 2");
  EXPECT_THAT(unknown.err(),
              testing::AllOf(testing::HasSubstr("CHECKPOINT"), testing::HasSubstr("bert")));
  Command missing("takt", Generation("/nonexistent", "a"));
  EXPECT_EQ(missing.Wait(), "exit status 4");
}

TEST(Model, EvaluatesAFolder) {
  Command eval("takt", {"-o", "json", "eval", kModel, "--data", kModel + "/tokens.bin", "--format",
                        "uint16", "--context", "16", "--windows", "10"});
  ASSERT_EQ(eval.Wait(), "exit status 0") << eval.err();
  const json score = json::parse(eval.out());
  EXPECT_EQ(score["tokens"], 160);
  EXPECT_NEAR(score["perplexity"].get<double>(), std::exp(score["loss"].get<double>()), 1e-9);
  EXPECT_TRUE(score["bits_per_byte"].is_null());
}

}  // namespace
}  // namespace takt::integration
