// SPDX-License-Identifier: Apache-2.0
#include "worker/inference/serve.h"

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::inference {
namespace {

const std::string kFolder = TAKT_SOURCE_DIR "/tests/golden/models/gpt2-tiny";  // 32 positions

struct Told {
  absl::Status status;
  std::vector<std::int32_t> tokens;
  std::vector<Answer> others;
};

Told Ask(const Request& request) {
  Told told;
  told.status = Serve(request, [&](const Answer& answer) {
    if (const auto* const token = std::get_if<Token>(&answer)) {
      told.tokens.push_back(token->id);
    } else {
      told.others.push_back(answer);
    }
    return absl::OkStatus();
  });
  return told;
}

Told AskFor(GenerateRequest work) {
  return Ask({.folder = kFolder, .threads = 1, .work = std::move(work)});
}

std::string FieldOf(const absl::Status& status) {
  const std::vector<FieldError> errors = FieldErrorsOf(status);
  return errors.empty() ? "" : errors.front().field;
}

TEST(Serve, TellsTheStartEachTokenAndTheEnd) {
  const Told told = AskFor({.prompt = {1, 2, 3}, .tokens = 6});
  ASSERT_TRUE(told.status.ok()) << told.status;
  EXPECT_EQ(told.tokens.size(), 6U);
  ASSERT_EQ(told.others.size(), 2U);
  EXPECT_TRUE(std::holds_alternative<GenerationStart>(told.others[0]));
  EXPECT_FALSE(std::get<Generated>(told.others[1]).reached_end);
}

TEST(Serve, GoesOnAsIfThePromptHadBeenLonger) {
  const std::vector<std::int32_t> all = AskFor({.prompt = {1, 2, 3}, .tokens = 6}).tokens;
  std::vector<std::int32_t> longer = {1, 2, 3};
  longer.insert(longer.end(), all.begin(), all.begin() + 2);
  const std::vector<std::int32_t> rest = AskFor({.prompt = longer, .tokens = 4}).tokens;
  EXPECT_EQ(rest, std::vector<std::int32_t>(all.begin() + 2, all.end()));
}

TEST(Serve, EndsWithAnEnd) {
  const std::vector<std::int32_t> all = AskFor({.prompt = {1, 2, 3}, .tokens = 6}).tokens;
  const Told told = AskFor({.prompt = {1, 2, 3}, .tokens = 6, .ends = {all[0]}});
  EXPECT_THAT(told.tokens, testing::ElementsAre(all[0]));
  EXPECT_TRUE(std::get<Generated>(told.others.back()).reached_end);
}

TEST(Serve, MakesAsManyTokensAsTheModelHasPositionsFor) {
  EXPECT_EQ(AskFor({.prompt = {1, 2, 3}}).tokens.size(), 29U);
  EXPECT_EQ(AskFor({.prompt = {1, 2, 3}, .tokens = 29}).tokens.size(), 29U);
}

TEST(Serve, RefusesWhatDoesNotFitTheModel) {
  EXPECT_EQ(FieldOf(AskFor({.prompt = {}}).status), "--prompt");
  EXPECT_EQ(FieldOf(AskFor({.prompt = {1, 256}}).status), "--prompt");
  EXPECT_EQ(FieldOf(AskFor({.prompt = std::vector<std::int32_t>(32, 1)}).status), "--prompt");
  EXPECT_EQ(FieldOf(AskFor({.prompt = {1, 2, 3}, .tokens = 30}).status), "--tokens");
  EXPECT_EQ(FieldOf(AskFor({.prompt = {1}, .tokenizer_vocab = 257}).status), "--tokenizer");
  EXPECT_EQ(FieldOf(Ask({.folder = "/nonexistent", .work = GenerateRequest{}}).status),
            "CHECKPOINT");
}

TEST(Serve, EndsWhenNobodyListens) {
  int calls = 0;
  const absl::Status status =
      Serve({.folder = kFolder, .threads = 1, .work = GenerateRequest{.prompt = {1}, .tokens = 9}},
            [&](const Answer&) {
              ++calls;
              return absl::UnavailableError("closed");
            });
  EXPECT_EQ(status, absl::UnavailableError("closed"));
  EXPECT_EQ(calls, 1);
}

TEST(Serve, EvaluatesWithTheContextOfTheModel) {
  const Told told = Ask({.folder = kFolder,
                         .threads = 1,
                         .work = EvaluateRequest{.data = kFolder + "/tokens.bin",
                                                 .format = config::DataFormat::kUint16,
                                                 .max_windows = 2}});
  ASSERT_TRUE(told.status.ok()) << told.status;
  const auto& evaluated = std::get<Evaluated>(told.others.back());
  EXPECT_EQ(evaluated.context, 32);
  EXPECT_EQ(evaluated.evaluation.tokens, 64);
  EXPECT_GT(evaluated.evaluation.loss, 0);
}

}  // namespace
}  // namespace takt::inference
