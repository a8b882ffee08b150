// SPDX-License-Identifier: Apache-2.0
#include "worker/inference/evaluation.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/inference/pass.h"

namespace takt::inference {
namespace {

const std::string& Folder() {
  static const auto* const folder =
      new std::string(TAKT_SOURCE_DIR "/tests/golden/models/gpt2-tiny");
  return *folder;
}

data::Corpus OpenTokens(const std::string& path = Folder() + "/tokens.bin") {
  return data::Corpus::Open({.field = "--data",
                             .path = path,
                             .data_root = "/",
                             .format = config::DataFormat::kUint16})
      .value();
}

class EvaluationTest : public testing::Test {
 protected:
  absl::StatusOr<Evaluation> Run(const EvaluationOptions& options) {
    return Evaluate(*model_, OpenTokens(), options);
  }
  const std::unique_ptr<LocalModel> model_ = LocalModel::Open(Folder(), 1).value();
};

TEST_F(EvaluationTest, IsTheMeanOverTheTokensOfAllWindows) {
  const data::Corpus corpus = OpenTokens();
  constexpr int kContext = 16;
  const auto pass = Pass::Create(*model_, {.rows = kContext}).value();
  std::vector<std::int32_t> tokens(kContext), targets(kContext);
  double sum = 0;
  for (std::int64_t window = 0; window < 3; ++window) {
    corpus.ReadWindow(window, tokens, targets);
    double loss = 0;
    ASSERT_TRUE(pass->Run({.tokens = tokens.data(), .targets = targets.data()}, &loss).ok());
    sum += loss;
  }
  const Evaluation three = Run({.context = kContext, .max_windows = 3}).value();
  EXPECT_EQ(three.loss, sum / (3 * kContext));
  EXPECT_EQ(three.tokens, 3 * kContext);
  EXPECT_EQ(three.windows, 3);
  const Evaluation all = Run({.context = kContext}).value();
  EXPECT_EQ(all.windows, corpus.NumWindows(kContext));
  EXPECT_EQ(all.tokens, all.windows * kContext);
  EXPECT_NE(all.loss, three.loss);
}

TEST_F(EvaluationTest, TellsHowFarItIs) {
  std::vector<std::int64_t> told;
  ASSERT_TRUE(Run({.context = 8,
                   .max_windows = 3,
                   .on_window =
                       [&](std::int64_t done, std::int64_t windows) {
                         EXPECT_EQ(windows, 3);
                         told.push_back(done);
                       }})
                  .ok());
  EXPECT_THAT(told, testing::ElementsAre(1, 2, 3));
}

TEST_F(EvaluationTest, RefusesWindowsLongerThanTheModelReads) {
  const absl::Status status = Run({.context = 33}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FieldErrorsOf(status).front().field, "--context");
}

TEST_F(EvaluationTest, RefusesTokensOutsideTheVocabulary) {
  const std::string path = testing::TempDir() + "/takt-evaluation-test.bin";
  const std::vector<std::uint16_t> ids = {1, 2, 3, 256, 5, 6};
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(ids.data()),
             static_cast<std::streamsize>(ids.size() * sizeof(ids[0])));
  const absl::Status status = Evaluate(*model_, OpenTokens(path), {.context = 4}).status();
  std::filesystem::remove(path);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FieldErrorsOf(status).front().field, "--data");
}

}  // namespace
}  // namespace takt::inference
