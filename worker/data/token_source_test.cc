// SPDX-License-Identifier: Apache-2.0
#include "worker/data/token_source.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "common/base/status.h"
#include "common/checkpoint/safetensors.h"
#include "common/data/token_origin.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::worker_data {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A file has this error if it may be right on another worker.
constexpr absl::StatusCode kNotHere = absl::StatusCode::kFailedPrecondition;

class TokenSourceTest : public testing::Test {
 protected:
  TokenSourceTest() {
    std::string pattern = (fs::temp_directory_path() / "takt-token-source-XXXXXX").string();
    root_ = fs::canonical(mkdtemp(pattern.data()));
    job_.model.context = 3;
    job_.model.vocab = 256;
    job_.global_batch = 4;
    job_.microbatch = 2;
    job_.train = {{.path = "tokens.bin", .format = config::DataFormat::kBytes}};
  }
  ~TokenSourceTest() override { fs::remove_all(root_); }

  void Write(const std::string& bytes) {
    std::ofstream(root_ / "tokens.bin", std::ios::binary) << bytes;
  }
  // 0, 1, 2, ...
  void WriteCounting(int count) {
    std::string bytes;
    for (int i = 0; i < count; ++i) bytes.push_back(static_cast<char>(i));
    Write(bytes);
  }
  void WriteTensors(const std::vector<std::int32_t>& tokens,
                    const std::vector<std::int32_t>& targets) {
    const std::vector<std::int64_t> shape = {static_cast<std::int64_t>(tokens.size()) / 3, 3};
    Write(checkpoint::FormatSafetensors({{.name = "tokens",
                                          .dtype = "I32",
                                          .shape = shape,
                                          .bytes = std::as_bytes(std::span(tokens))},
                                         {.name = "targets",
                                          .dtype = "I32",
                                          .shape = shape,
                                          .bytes = std::as_bytes(std::span(targets))}}));
    job_.train[0].format = config::DataFormat::kSafetensors;
  }

  // Writes rows of three tokens, the targets of which cross documents.
  void WriteDocuments(const char* name, const std::vector<std::int32_t>& values) {
    const std::vector<std::int32_t> tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    const std::vector<std::int32_t> targets = {2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13};
    std::vector<checkpoint::Tensor> tensors;
    const auto add = [&](const char* tensor, const std::vector<std::int32_t>& of_rows) {
      tensors.push_back({.name = tensor,
                         .dtype = "I32",
                         .shape = {4, 3},
                         .bytes = std::as_bytes(std::span(of_rows))});
    };
    add("tokens", tokens);
    add("targets", targets);
    add(name, values);
    Write(checkpoint::FormatSafetensors(tensors));
    job_.train[0].format = config::DataFormat::kSafetensors;
  }

  std::unique_ptr<TokenSource> Open(int dp_size = 1) {
    auto source = TokenSource::Open(TrainingTokens(job_, root_.string(), dp_size));
    EXPECT_TRUE(source.ok()) << source.status();
    return source.ok() ? *std::move(source) : nullptr;
  }

  void ExpectRefused(const std::string& field, const std::string& rule,
                     absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
    const absl::Status status = TokenSource::Open(TrainingTokens(job_, root_.string(), 1)).status();
    ASSERT_EQ(status.code(), code);
    const std::vector<FieldError> errors = FieldErrorsOf(status);
    ASSERT_EQ(errors.size(), 1U);
    EXPECT_EQ(errors[0].field, field);
    EXPECT_THAT(errors[0].rule, HasSubstr(rule));
    EXPECT_NE(errors[0].fix, "");
  }

  fs::path root_;
  config::JobSpec job_;
};

TEST_F(TokenSourceTest, ReadsTheRowsOfAMicrobatch) {
  WriteCounting(100);
  const auto source = Open(2);
  std::vector<std::int32_t> tokens(6), targets(6);
  // Step 2, rank 1, microbatch 0: rows 6 and 7 of the run, windows of three tokens each.
  source->Read(StepId(2), DpRank(1), MicrobatchId(0), tokens, targets);
  EXPECT_THAT(tokens, ElementsAre(18, 19, 20, 21, 22, 23));
  EXPECT_THAT(targets, ElementsAre(19, 20, 21, 22, 23, 24));
}

TEST_F(TokenSourceTest, ScoresEveryTargetOfAStream) {
  WriteCounting(100);
  EXPECT_EQ(Open(2)->CountScored(StepId(5)), 12);
}

TEST_F(TokenSourceTest, KeepsDocumentsOfAStreamApart) {
  Write(std::string("\1\0\2\3\0\0\4\5\6\7\0\1\2", 13));  // each 0 ends one
  job_.document_end = 0;
  const auto source = Open();
  std::vector<std::int32_t> tokens(6), targets(6), starts(6);
  source->Read(StepId(1), DpRank(0), MicrobatchId(0), tokens, targets, starts);
  EXPECT_THAT(tokens, ElementsAre(1, 0, 2, 3, 0, 0));
  EXPECT_THAT(targets, ElementsAre(0, -100, 3, 0, -100, -100));
  EXPECT_THAT(starts, ElementsAre(0, 0, 2, 0, 0, 2));
  source->Read(StepId(1), DpRank(0), MicrobatchId(1), tokens, targets, starts);
  EXPECT_THAT(targets, ElementsAre(5, 6, 7, 0, -100, 2));
  EXPECT_THAT(starts, ElementsAre(0, 0, 0, 0, 0, 2));
  EXPECT_EQ(source->CountScored(StepId(1)), 8);
}

TEST_F(TokenSourceTest, KeepsDocumentsOfRowsApart) {
  for (const bool by_positions : {false, true}) {
    if (by_positions) {
      WriteDocuments("positions", {0, 1, 0, 0, 1, 2, 0, 0, 0, 0, 1, 2});
    } else {
      WriteDocuments("document", {0, 0, 1, 4, 4, 4, 0, 1, 2, 0, 0, 0});
    }
    job_.documents = config::Documents::kSeparate;
    const auto source = Open();
    std::vector<std::int32_t> tokens(6), targets(6), starts(6);
    source->Read(StepId(1), DpRank(0), MicrobatchId(0), tokens, targets, starts);
    EXPECT_THAT(targets, ElementsAre(2, -100, 4, 5, 6, 7));
    EXPECT_THAT(starts, ElementsAre(0, 0, 2, 0, 0, 0));
    EXPECT_EQ(source->CountScored(StepId(1)), 9);
    // Jobs that join documents read the targets of the file.
    job_.documents = config::Documents::kJoin;
    EXPECT_EQ(Open()->CountScored(StepId(1)), 12);
  }
}

TEST_F(TokenSourceTest, RefusesWhatIsNoDocument) {
  job_.documents = config::Documents::kSeparate;
  WriteDocuments("document", {0, 0, 1, 4, 4, 3, 0, 1, 2, 0, 0, 0});
  ExpectRefused("data.train.path", "row 1, position 2: `document` is 3");
  WriteDocuments("positions", {0, 1, 0, 0, 1, 2, 1, 0, 0, 0, 1, 2});
  ExpectRefused("data.train.path", "row 2, position 0: `positions` is 1");
  WriteCounting(100);
  job_.train[0].format = config::DataFormat::kBytes;
  ExpectRefused("data.train.path", "nothing says where documents begin");
}

TEST_F(TokenSourceTest, NeverJoinsDocumentsSilently) {
  WriteDocuments("document", {0, 0, 1, 4, 4, 4, 0, 1, 2, 0, 0, 0});
  ExpectRefused("data.documents", "says where documents begin");
  job_.documents = config::Documents::kJoin;
  EXPECT_NE(Open(), nullptr);
}

TEST_F(TokenSourceTest, TellsHowManyDocumentsItJoins) {
  WriteCounting(40);
  const auto notes = [&] {
    return TokenSource::Notes(TrainingTokens(job_, root_.string(), /*dp_size=*/1)).value();
  };
  EXPECT_THAT(notes(), IsEmpty()) << "nothing says where documents end";
  data::TokenOrigin origin{.documents = 5, .tokens = 40};
  const std::string path = data::TokenOriginPath((root_ / "tokens.bin").string());
  std::ofstream(path) << data::FormatTokenOrigin(origin);
  EXPECT_THAT(notes(), IsEmpty());
  origin.end_of_document = 3;
  std::ofstream(path) << data::FormatTokenOrigin(origin);
  EXPECT_THAT(notes(),
              ElementsAre(AllOf(HasSubstr("the 5 documents of "), HasSubstr("are joined"))));
  job_.documents = config::Documents::kJoin;
  EXPECT_THAT(notes(), IsEmpty());
  job_.documents = config::Documents::kUnstated;
  job_.document_end = 3;
  EXPECT_THAT(notes(), IsEmpty());
}

TEST_F(TokenSourceTest, CountsScoredTargetsOfTheGlobalBatch) {
  job_.global_batch = 2;
  job_.microbatch = 1;
  WriteTensors({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
               {-100, 3, 4, -100, -100, -100, 8, 9, 10, 11, 12, -100});
  for (const int dp_size : {1, 2}) {
    const auto source = Open(dp_size);
    EXPECT_EQ(source->CountScored(StepId(1)), 2);
    EXPECT_EQ(source->CountScored(StepId(2)), 5);
    EXPECT_EQ(source->CountScored(StepId(3)), 2);  // in the second epoch
  }
}

TEST_F(TokenSourceTest, ShuffledScoresWhatItReads) {
  job_.shuffle = true;
  job_.global_batch = 2;
  job_.microbatch = 2;
  WriteTensors({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
               {-100, 3, 4, -100, -100, -100, 8, 9, 10, 11, 12, -100});
  const auto source = Open();
  std::vector<std::int32_t> tokens(6), targets(6);
  for (StepId step(1); step.value() <= 10; ++step) {
    source->Read(step, DpRank(0), MicrobatchId(0), tokens, targets);
    EXPECT_EQ(source->CountScored(step), 6 - std::count(targets.begin(), targets.end(), -100));
  }
}

TEST_F(TokenSourceTest, RefusesFilesThatAreMissingEmptyOrTooShort) {
  ExpectRefused("data.train.path", "must exist", kNotHere);
  Write("");
  ExpectRefused("data.train.path", "empty");
  WriteCounting(3);
  ExpectRefused("data.train.path", "model.context + 1 = 4");
  WriteCounting(12);  // three windows
  ExpectRefused("data.train.path", "holds 3 windows of 3 tokens; one step needs 4");
}

TEST_F(TokenSourceTest, FilesCanBeCheckedWithoutReadingTheirTokens) {
  const auto check = [this] {
    return TokenSource::CheckFiles(TrainingTokens(job_, root_.string(), 1));
  };
  EXPECT_EQ(check().code(), kNotHere);
  WriteCounting(12);
  EXPECT_TRUE(absl::IsInvalidArgument(check())) << check();
  WriteCounting(100);
  EXPECT_EQ(check(), absl::OkStatus());
  job_.model.vocab = 77;
  EXPECT_EQ(check(), absl::OkStatus());
}

TEST_F(TokenSourceTest, RefusesTokensOutsideTheVocabularyWithTheirPlace) {
  job_.model.vocab = 77;
  WriteCounting(100);
  ExpectRefused("data.train.path", "token 77 at position 77");
}

TEST_F(TokenSourceTest, RefusesWhatIsNoFile) {
  fs::create_directory(root_ / "tokens.bin");
  ExpectRefused("data.train.path", "is a directory without files", kNotHere);
  fs::remove(root_ / "tokens.bin");
  ASSERT_EQ(mkfifo((root_ / "tokens.bin").c_str(), 0600), 0);
  // Without waiting for a writer.
  ExpectRefused("data.train.path", "is not a regular file", kNotHere);
}

TEST_F(TokenSourceTest, RefusesToLeaveTheRoot) {
  job_.train[0].path = "../tokens.bin";
  ExpectRefused("data.train.path", "must lie under the worker's data root");
}

TEST_F(TokenSourceTest, MixesCorpora) {
  WriteCounting(100);
  std::ofstream(root_ / "letters.txt") << "abcdefghijklmnopqrstuvwxyz";
  job_.train[0].weight = 3;
  job_.train.push_back({.path = "*.txt", .format = config::DataFormat::kBytes});
  const auto source = Open();
  std::vector<std::int32_t> tokens(6), targets(6);
  source->Read(StepId(1), DpRank(0), MicrobatchId(0), tokens, targets);
  EXPECT_THAT(tokens, ElementsAre(0, 1, 2, 3, 4, 5));
  source->Read(StepId(1), DpRank(0), MicrobatchId(1), tokens, targets);
  EXPECT_THAT(tokens, ElementsAre('a', 'b', 'c', 6, 7, 8));
  EXPECT_THAT(targets, ElementsAre('b', 'c', 'd', 7, 8, 9));
}

TEST_F(TokenSourceTest, ScoresRowsAndStreamsOfAMixture) {
  job_.global_batch = 2;
  job_.microbatch = 2;
  WriteTensors({1, 2, 3, 4, 5, 6}, {-100, 3, 4, -100, -100, -100});
  std::ofstream(root_ / "letters.txt") << "abcdefghijklmnopqrstuvwxyz";
  job_.train.push_back({.path = "letters.txt", .format = config::DataFormat::kBytes});
  const auto source = Open();
  EXPECT_EQ(source->CountScored(StepId(1)), 2 + 3);
  EXPECT_EQ(source->CountScored(StepId(2)), 0 + 3);
}

TEST_F(TokenSourceTest, NamesTheCorpusThatIsWrong) {
  WriteCounting(100);
  job_.train.push_back({.path = "absent.bin", .format = config::DataFormat::kBytes});
  ExpectRefused("data.train[1].path", "must exist", kNotHere);
  // The corpus has two windows, but three of the four windows of a step must be its own.
  std::ofstream(root_ / "absent.bin") << "abcdefg";
  job_.train[1].weight = 3;
  ExpectRefused("data.train[1].path", "holds 2 windows of 3 tokens; one step needs 3");
}

TEST_F(TokenSourceTest, ReadsValidationInFileOrder) {
  WriteCounting(100);
  job_.shuffle = true;
  job_.validation = {.path = "tokens.bin", .format = config::DataFormat::kBytes};
  const auto source = TokenSource::Open(ValidationTokens(job_, root_.string(), 1));
  ASSERT_TRUE(source.ok()) << source.status();
  std::vector<std::int32_t> tokens(6), targets(6);
  (*source)->Read(StepId(1), DpRank(0), MicrobatchId(0), tokens, targets);
  EXPECT_THAT(tokens, ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST_F(TokenSourceTest, AJobThatOnlyEvaluatesNeedsNothingToTrainOn) {
  job_.validation = {.path = "validation.bin", .format = config::DataFormat::kBytes, .batches = 3};
  job_.evaluation = config::Evaluation{.weights = "w"};
  const TokenSourceOptions options = TrainingTokens(job_, root_.string(), 1);
  EXPECT_EQ(options.field, "data.validation");
  EXPECT_EQ(options.corpora[0].path, "validation.bin");
}

TEST_F(TokenSourceTest, RefusesToValidateOnMoreThanTheFileHolds) {
  WriteCounting(100);  // 33 windows, 8 global batches
  job_.validation = {.path = "tokens.bin", .format = config::DataFormat::kBytes, .batches = 8};
  EXPECT_TRUE(TokenSource::Open(ValidationTokens(job_, root_.string(), 1)).ok());
  job_.validation->batches = 9;
  const absl::Status status = TokenSource::Open(ValidationTokens(job_, root_.string(), 1)).status();
  ASSERT_EQ(FieldErrorsOf(status).size(), 1U) << status;
  EXPECT_EQ(FieldErrorsOf(status)[0].field, "data.validation.batches");
  EXPECT_EQ(FieldErrorsOf(status)[0].value, "9");
}

}  // namespace
}  // namespace takt::worker_data
