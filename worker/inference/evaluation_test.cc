// SPDX-License-Identifier: Apache-2.0
#include "worker/inference/evaluation.h"

#include <stdlib.h>

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

// A file of these tokens, while the object lives.
class TokenPath {
 public:
  explicit TokenPath(const std::vector<std::uint16_t>& ids) {
    EXPECT_NE(mkdtemp(directory_.data()), nullptr);
    path_ = directory_ + "/tokens.bin";
    std::ofstream(path_, std::ios::binary)
        .write(reinterpret_cast<const char*>(ids.data()),
               static_cast<std::streamsize>(ids.size() * sizeof(ids[0])));
  }
  ~TokenPath() { std::filesystem::remove_all(directory_); }
  TokenPath(const TokenPath&) = delete;
  TokenPath& operator=(const TokenPath&) = delete;
  const std::string& get() const { return path_; }

 private:
  std::string directory_ = testing::TempDir() + "/takt-evaluation-XXXXXX";
  std::string path_;
};

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

// The golden loss is that of an implementation in which documents do not see one another.
TEST(Evaluation, KeepsDocumentsApartWhereRowsSayWhereTheyBegin) {
  constexpr double kGoldenLoss = 4.193682013960679;  // train.json
  const std::string folder = TAKT_SOURCE_DIR "/tests/golden/models/gpt2-packed";
  const data::Corpus rows = data::Corpus::Open({.field = "--data",
                                                .path = folder + "/batch.safetensors",
                                                .data_root = "/",
                                                .format = config::DataFormat::kSafetensors})
                                .value();
  ASSERT_TRUE(rows.says_documents());
  const auto model = LocalModel::Open(folder, 1).value();
  const auto result = Evaluate(*model, rows, {.context = static_cast<int>(rows.row_length())});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_NEAR(result->loss, kGoldenLoss, 1e-5);
}

// A stream is scored as a job with `documents: separate` scores it: each document by itself.
TEST_F(EvaluationTest, KeepsTheDocumentsOfAStreamApart) {
  constexpr std::int32_t kEnd = 7;
  const TokenPath path({1, 2, 3, kEnd, 4, 5, 6, 8, 9});  // one window of 8
  const std::vector<std::int32_t> documents[] = {{1, 2, 3, kEnd}, {4, 5, 6, 8}};
  // The end's own target is of the next document.
  const std::vector<std::int32_t> targets[] = {{2, 3, kEnd, backend::kIgnoredTarget}, {5, 6, 8, 9}};
  const auto pass = Pass::Create(*model_, {.rows = 4}).value();
  double sum = 0;
  for (int i = 0; i < 2; ++i) {
    double loss = 0;
    ASSERT_TRUE(
        pass->Run({.tokens = documents[i].data(), .targets = targets[i].data()}, &loss).ok());
    sum += loss;
  }
  const auto score = [&](const EvaluatedDocuments& how) {
    return Evaluate(*model_, OpenTokens(path.get()), {.context = 8, .documents = how}).value();
  };
  const Evaluation apart = score({.end = kEnd});
  EXPECT_EQ(apart.tokens, 7);
  EXPECT_NEAR(apart.loss, sum / 7, 1e-5);
  EXPECT_EQ(score({.mode = config::Documents::kSeparate, .end = kEnd}).loss, apart.loss);
  const Evaluation joined = score({});
  EXPECT_EQ(joined.tokens, 8);
  EXPECT_EQ(score({.mode = config::Documents::kJoin}).loss, joined.loss);
}

TEST_F(EvaluationTest, TheConfigSaysWhichTokenEndsDocuments) {
  const TokenPath path({1, 2, 3, 0, 4, 5, 6, 8, 9});  // eos_token_id of gpt2-tiny is 0
  const auto tokens = [&](const EvaluatedDocuments& how) {
    return Evaluate(*model_, OpenTokens(path.get()), {.context = 8, .documents = how})->tokens;
  };
  EXPECT_EQ(tokens({.mode = config::Documents::kSeparate}), 7);
  EXPECT_EQ(tokens({.mode = config::Documents::kSeparate, .end = 3}), 7);
  EXPECT_EQ(tokens({}), 8);
}

TEST_F(EvaluationTest, RefusesAnEndOutsideTheVocabulary) {
  const absl::Status status = Run({.context = 8, .documents = {.end = 256}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FieldErrorsOf(status).front().field, "--document-end");
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
  const TokenPath path({1, 2, 3, 256, 5, 6});
  const absl::Status status = Evaluate(*model_, OpenTokens(path.get()), {.context = 4}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FieldErrorsOf(status).front().field, "--data");
}

}  // namespace
}  // namespace takt::inference
