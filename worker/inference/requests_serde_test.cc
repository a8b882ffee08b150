// SPDX-License-Identifier: Apache-2.0
#include "worker/inference/requests_serde.h"

#include <limits>
#include <optional>
#include <sstream>

#include "common/base/status.h"
#include "gmock/gmock.h"
#include "google/protobuf/io/zero_copy_stream_impl.h"
#include "google/protobuf/util/delimited_message_util.h"
#include "gtest/gtest.h"
#include "takt/v1/local_model.pb.h"

namespace takt::inference {
namespace {

v1::LocalModelRequest Generation() {
  v1::LocalModelRequest request;
  request.set_folder("/m");
  request.set_threads(3);
  v1::GenerateText& work = *request.mutable_generate();
  work.add_prompt(5);
  work.add_prompt(7);
  work.set_tokens(9);
  work.set_temperature(0.5);
  work.set_top_p(0.25);
  work.set_seed(11);
  work.add_ends(13);
  work.set_tokenizer_vocab(100);
  return request;
}

TEST(ParseRequest, ReadsAGeneration) {
  const Request request = ParseRequest(Generation().SerializeAsString()).value();
  EXPECT_EQ(request.folder, "/m");
  EXPECT_EQ(request.threads, 3);
  const auto& work = std::get<GenerateRequest>(request.work);
  EXPECT_THAT(work.prompt, testing::ElementsAre(5, 7));
  EXPECT_EQ(work.tokens, 9);
  EXPECT_EQ(work.sampling.temperature, 0.5);
  EXPECT_EQ(work.sampling.top_p, 0.25);
  EXPECT_EQ(work.sampling.seed, 11U);
  EXPECT_THAT(work.ends, testing::ElementsAre(13));
  EXPECT_EQ(work.tokenizer_vocab, 100);
}

TEST(ParseRequest, ReadsAnEvaluation) {
  v1::LocalModelRequest proto;
  proto.mutable_evaluate()->set_data("/d");
  proto.mutable_evaluate()->set_format(v1::DATA_FORMAT_LLMC);
  proto.mutable_evaluate()->set_context(64);
  proto.mutable_evaluate()->set_max_windows(2);
  const auto work = std::get<EvaluateRequest>(ParseRequest(proto.SerializeAsString())->work);
  EXPECT_EQ(work.data, "/d");
  EXPECT_EQ(work.format, config::DataFormat::kLlmc);
  EXPECT_EQ(work.context, 64);
  EXPECT_EQ(work.max_windows, 2);
  EXPECT_EQ(work.documents.mode, config::Documents::kUnstated);
  EXPECT_EQ(work.documents.end, std::nullopt);
  proto.mutable_evaluate()->set_documents(v1::DOCUMENTS_MODE_SEPARATE);
  proto.mutable_evaluate()->set_document_end(0);
  const auto apart = std::get<EvaluateRequest>(ParseRequest(proto.SerializeAsString())->work);
  EXPECT_EQ(apart.documents.mode, config::Documents::kSeparate);
  EXPECT_EQ(apart.documents.end, 0);
}

TEST(ParseRequest, RefusesWhatSamplingCannotUse) {
  const auto field_of = [](const v1::LocalModelRequest& request) {
    const absl::Status status = ParseRequest(request.SerializeAsString()).status();
    return status.ok() ? "" : FieldErrorsOf(status).front().field;
  };
  EXPECT_EQ(field_of(Generation()), "");
  for (const double bad :
       {-0.1, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    v1::LocalModelRequest request = Generation();
    request.mutable_generate()->set_temperature(bad);
    EXPECT_EQ(field_of(request), "--temperature") << bad;
  }
  for (const double bad : {0.0, -1.0, 1.5, std::numeric_limits<double>::quiet_NaN()}) {
    v1::LocalModelRequest request = Generation();
    request.mutable_generate()->set_top_p(bad);
    EXPECT_EQ(field_of(request), "--top-p") << bad;
  }
  v1::LocalModelRequest request = Generation();
  request.mutable_generate()->set_tokens(-1);
  EXPECT_EQ(field_of(request), "--tokens");
}

TEST(ParseRequest, RefusesOtherBytes) {
  EXPECT_EQ(ParseRequest("").status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ParseRequest("\xff\xff").status().code(), absl::StatusCode::kDataLoss);
}

TEST(FormatAnswer, WritesMessagesThatFollowEachOther) {
  std::string bytes = FormatAnswer(GenerationStart{.load_seconds = 1, .prompt_seconds = 2});
  bytes += FormatAnswer(Token{.id = 0});
  bytes += FormatAnswer(Progress{.windows_done = 3, .windows = 4});
  bytes += FormatAnswer(Generated{.seconds = 5, .reached_end = true});
  bytes +=
      FormatAnswer(Evaluated{.evaluation = {.loss = 6, .tokens = 7, .windows = 8}, .context = 9});
  bytes += FormatAnswer(InvalidField({.field = "f", .rule = "r"}));
  std::istringstream in(bytes);
  google::protobuf::io::IstreamInputStream stream(&in);
  const auto next = [&] {
    v1::LocalModelAnswer answer;
    EXPECT_TRUE(
        google::protobuf::util::ParseDelimitedFromZeroCopyStream(&answer, &stream, nullptr));
    return answer;
  };
  EXPECT_EQ(next().start().prompt_seconds(), 2);
  EXPECT_EQ(next().answer_case(), v1::LocalModelAnswer::kToken);
  EXPECT_EQ(next().progress().windows(), 4);
  EXPECT_TRUE(next().generated().reached_end());
  EXPECT_EQ(next().evaluated().tokens(), 7);
  const v1::LocalModelAnswer failure = next();
  EXPECT_EQ(failure.failure().code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
  EXPECT_FALSE(failure.failure().detail().empty());
}

}  // namespace
}  // namespace takt::inference
