// SPDX-License-Identifier: Apache-2.0
#include "common/data/token_origin.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/cleanup/cleanup.h"
#include "gmock/gmock.h"

namespace takt::data {
namespace {

TEST(TokenOrigin, IsReadAsItWasWritten) {
  TokenOrigin origin{.tokenizer = "tokenizer.json",
                     .tokenizer_hash = "00ff",
                     .vocab = 50257,
                     .begin_of_document = 1,
                     .end_of_document = 50256,
                     .documents = 2,
                     .tokens = 30,
                     .bytes = 99,
                     .replaced = 1};
  EXPECT_EQ(ParseTokenOrigin(FormatTokenOrigin(origin)).value(), origin);
  origin.begin_of_document.reset();
  origin.end_of_document.reset();
  EXPECT_EQ(ParseTokenOrigin(FormatTokenOrigin(origin)).value(), origin);
}

TEST(TokenOrigin, RefusesOtherFiles) {
  EXPECT_FALSE(ParseTokenOrigin("[]").ok());
  EXPECT_FALSE(ParseTokenOrigin("{").ok());
  EXPECT_FALSE(ParseTokenOrigin(R"({"version": 2})").ok());
  EXPECT_FALSE(ParseTokenOrigin(R"({"version": 1, "bytes": -1})").ok());
  EXPECT_FALSE(ParseTokenOrigin(R"({"version": 1, "tokenizer": 7})").ok());
  EXPECT_TRUE(ParseTokenOrigin(R"({"version": 1, "added_later": true})").ok());
}

TEST(TokenOrigin, IsAbsentBesideOtherTokenFiles) {
  EXPECT_EQ(ReadTokenOrigin("/nonexistent/train.bin").value(), std::nullopt);
}

TEST(BytesPerToken, AreWhatTheFileBesideTheTokensSaysIfItIsOfThem) {
  std::string directory = testing::TempDir() + "takt-origin-XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  const absl::Cleanup remove = [&] { std::filesystem::remove_all(directory); };
  const std::string tokens = directory + "/text.bin", beside = TokenOriginPath(tokens);
  std::ofstream(tokens) << std::string("a\0b\0c\0d\0", 8);
  const auto open = [&](config::DataFormat format) {
    return Corpus::Open({.path = tokens, .data_root = "/", .format = format}).value();
  };
  const Corpus corpus = open(config::DataFormat::kUint16);
  EXPECT_EQ(BytesPerToken(corpus).value(), std::nullopt);
  EXPECT_EQ(BytesPerToken(open(config::DataFormat::kBytes)).value(), 1);

  TokenOrigin origin{.tokenizer = "tokenizer.json", .vocab = 256, .tokens = 4, .bytes = 14};
  std::ofstream(beside) << FormatTokenOrigin(origin);
  EXPECT_EQ(BytesPerToken(corpus).value(), 3.5);
  origin.tokens = 5;
  std::ofstream(beside) << FormatTokenOrigin(origin);
  EXPECT_EQ(BytesPerToken(corpus).status().code(), absl::StatusCode::kFailedPrecondition);
  std::ofstream(beside) << "{\"version\": 1, \"bytes\"";
  EXPECT_THAT(std::string(BytesPerToken(corpus).status().message()), testing::HasSubstr(beside));
}

}  // namespace
}  // namespace takt::data
