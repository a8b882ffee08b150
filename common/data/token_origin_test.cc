// SPDX-License-Identifier: Apache-2.0
#include "common/data/token_origin.h"

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

}  // namespace
}  // namespace takt::data
