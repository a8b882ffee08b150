// SPDX-License-Identifier: Apache-2.0
#include "common/tokenizer/pattern.h"

#include <string>

#include "gmock/gmock.h"

namespace takt::tokenizer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> Pieces(std::vector<std::string> expressions, std::string_view text) {
  std::vector<Pattern> patterns;
  for (const std::string& expression : expressions) {
    patterns.push_back(Pattern::Compile(expression).value());
  }
  Splitter splitter(patterns);
  std::vector<std::string> pieces;
  const absl::Status status = splitter.Split(text, [&pieces](std::string_view piece) {
    pieces.emplace_back(piece);
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  return pieces;
}

std::string Refusal(std::string_view expression) {
  return std::string(Pattern::Compile(expression).status().message());
}

TEST(Splitter, PiecesAreMatchesAndWhatLiesBetween) {
  EXPECT_THAT(Pieces({R"(\p{N})"}, "a12b"), ElementsAre("a", "1", "2", "b"));
  EXPECT_THAT(Pieces({R"(\p{N}+)", "b"}, "ab12b"), ElementsAre("a", "b", "12", "b"));
  EXPECT_THAT(Pieces({}, "whole"), ElementsAre("whole"));
  EXPECT_THAT(Pieces({"x"}, ""), ElementsAre());
}

TEST(Splitter, AnEmptyMatchDividesOnlyInsideAGap) {
  EXPECT_THAT(Pieces({R"((?=(?:\d{3})+(?!\d)))"}, "n1234567"), ElementsAre("n1", "234", "567"));
  EXPECT_THAT(Pieces({"b*"}, "abba"), ElementsAre("a", "bb", "a"));
}

TEST(Splitter, BlanksAreTheOnesOfUnicode) {
  // U+180E was a blank once, and is one in PCRE2.
  EXPECT_THAT(Pieces({R"(\s+)"},
                     "a\xE1\xA0\x8E"
                     "b\xC2\xA0"
                     "c"),
              ElementsAre("a\xE1\xA0\x8E"
                          "b",
                          "\xC2\xA0", "c"));
  EXPECT_THAT(Pieces({R"([^\s]+)"}, "a b"), ElementsAre("a", " ", "b"));
}

TEST(Splitter, AnExpressionThatTakesTooLongIsAnError) {
  std::vector<Pattern> patterns;
  patterns.push_back(Pattern::Compile("(x+x+)+[yz]").value());
  Splitter splitter(patterns);
  const absl::Status status =
      splitter.Split(std::string(60, 'x'), [](std::string_view) { return absl::OkStatus(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
}

TEST(Pattern, RefusesWhatPcreReadsAsSomethingElse) {
  EXPECT_THAT(Refusal(R"(\h)"), HasSubstr("hexadecimal"));
  EXPECT_THAT(Refusal("[a&&b]"), HasSubstr("&&"));
  EXPECT_THAT(Refusal("[a[b]]"), HasSubstr("class in a class"));
  EXPECT_THAT(Refusal("(a"), HasSubstr("does not compile at its byte 2"));
  EXPECT_TRUE(Pattern::Compile("[[:alpha:]]&&[\\[]").ok());
  EXPECT_FALSE(Pattern::CompileLiteral("").ok());
}

}  // namespace
}  // namespace takt::tokenizer
