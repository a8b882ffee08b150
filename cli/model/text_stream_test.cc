// SPDX-License-Identifier: Apache-2.0
#include "cli/model/text_stream.h"

#include <string>
#include <vector>

#include "common/tokenizer/bytes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::cli {
namespace {

using testing::ElementsAre;

const tokenizer::Tokenizer& Bytes() {
  static const auto* const tokenizer = tokenizer::CreateByteTokenizer().release();
  return *tokenizer;
}

std::vector<std::int32_t> IdsOf(const std::string& text) {
  std::vector<std::int32_t> ids;
  EXPECT_TRUE(Bytes().NewEncoder({})->Encode(text, ids).ok());
  return ids;
}

// Returns what each byte of the text gives, and then what is left.
std::vector<std::string> Stream(const std::string& before, const std::string& text) {
  TextStream stream(Bytes(), IdsOf(before));
  std::vector<std::string> pieces;
  for (const std::int32_t id : IdsOf(text)) pieces.push_back(stream.Add(id));
  pieces.push_back(stream.Finish());
  return pieces;
}

TEST(TextStream, GivesTheTextOfEachTokenAndNothingOfThePrompt) {
  EXPECT_THAT(Stream("before", "abc"), ElementsAre("a", "b", "c", ""));
}

TEST(TextStream, WaitsForTheEndOfACharacter) {
  EXPECT_THAT(Stream("x", "é€😀"), ElementsAre("", "é", "", "", "€", "", "", "", "😀", ""));
}

TEST(TextStream, ReplacesWhatIsNoCharacter) {
  EXPECT_THAT(Stream("",
                     "a\xff"
                     "b"),
              ElementsAre("a", testing::_, testing::_, testing::_));
  std::string all;
  for (const std::string& piece : Stream("",
                                         "a\xff"
                                         "b"))
    all += piece;
  EXPECT_EQ(all, "a\uFFFDb");
}

TEST(TextStream, ReplacesTheBeginningOfACharacterThatIsLeft) {
  EXPECT_THAT(Stream("", "a\xe2\x82"), ElementsAre("a", "", "", "\uFFFD"));
}

TEST(TextStream, GivesALongTextWhole) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += i % 7 == 0 ? "日本" : "word ";
  std::string all;
  for (const std::string& piece : Stream("the prompt", text)) all += piece;
  EXPECT_EQ(all, text);
}

}  // namespace
}  // namespace takt::cli
