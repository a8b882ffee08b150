// SPDX-License-Identifier: Apache-2.0
// Tests `takt data tokenize`, and `takt generate` and `takt eval` with the real worker.
#include <signal.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/testing/test_checkpoint.h"
#include "gmock/gmock.h"
#include "tests/integration/command.h"

namespace takt::integration {
namespace {

using nlohmann::json;

const std::string kModel = cli::GoldenModel("gpt2-tiny");  // 256 tokens, 32 positions
const std::string kTokenizer = TAKT_SOURCE_DIR "/tests/golden/tokenizer/gpt2";

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

TEST(Tokenize, GoesOnAfterItWasKilled) {
  const TestDirectory directory;
  std::string text;
  for (unsigned i = 0; text.size() < 60'000'000; ++i)
    absl::StrAppend(&text, i * i % 7919, " words\n");
  const std::string in = directory.Write("text.txt", text);
  const auto start = [&](const char* out) {
    return std::make_unique<Command>(
        "takt", std::vector<std::string>{"-o", "json", "data", "tokenize", in, "--tokenizer",
                                         kTokenizer, "--documents", "lines", "--threads", "1",
                                         "--out", directory.Path(out)});
  };
  // Waits until something is in the file.
  const auto await = [&](const char* file) {
    const absl::Time end = absl::Now() + absl::Minutes(1);
    while (absl::Now() < end) {
      std::error_code absent;
      const std::uintmax_t size = std::filesystem::file_size(directory.Path(file), absent);
      if (!absent && size > 0) return true;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return false;
  };
  const auto whole = start("whole.bin");
  ASSERT_EQ(whole->Wait(), "exit status 0") << whole->err();

  // It writes down how far it came every five seconds, from before its first token on.
  const auto killed = start("out.bin");
  ASSERT_TRUE(await(".out.bin.partial")) << killed->err();
  killed->Signal(SIGSTOP);
  absl::SleepFor(absl::Seconds(5));
  killed->Signal(SIGCONT);
  ASSERT_TRUE(await(".out.bin.state")) << killed->err();
  killed->Signal(SIGKILL);
  EXPECT_EQ(killed->Wait(), "signal 9 (Killed)");
  EXPECT_FALSE(std::filesystem::exists(directory.Path("out.bin")));

  const auto resumed = start("out.bin");
  ASSERT_EQ(resumed->Wait(), "exit status 0") << resumed->err();
  EXPECT_GT(json::parse(resumed->out())["resumed_bytes"], 0);
  EXPECT_EQ(ReadFile(directory.Path("out.bin")), ReadFile(directory.Path("whole.bin")));
  EXPECT_EQ(ReadFile(directory.Path("out.bin.json")), ReadFile(directory.Path("whole.bin.json")));
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
