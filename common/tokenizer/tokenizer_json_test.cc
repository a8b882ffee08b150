// SPDX-License-Identifier: Apache-2.0
#include "common/tokenizer/tokenizer_json.h"

#include <functional>
#include <string>

#include "common/base/status.h"
#include "common/tokenizer/byte_alphabet.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"

namespace takt::tokenizer {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// The bytes are ids 0 to 255, "ab" is 256 and "abc" 257.
json SmallTokenizer() {
  json vocabulary = json::object();
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary[TokenOfByte(static_cast<unsigned char>(byte))] = byte;
  }
  vocabulary["ab"] = 256;
  vocabulary["abc"] = 257;
  json document;
  document["added_tokens"] = json::array();
  document["normalizer"] = nullptr;
  document["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  document["model"] = {{"type", "BPE"}, {"vocab", vocabulary}};
  document["model"]["merges"] = json::array({"a b", json::array({"ab", "c"})});
  return document;
}

std::string ErrorOf(const std::function<void(json&)>& change) {
  json document = SmallTokenizer();
  change(document);
  const auto model = ParseTokenizerJson(document.dump(), "t.json");
  EXPECT_FALSE(model.ok());
  const auto errors = FieldErrorsOf(model.status());
  EXPECT_EQ(errors.size(), 1U);
  if (!errors.empty()) {
    EXPECT_EQ(errors[0].where, "t.json");
  }
  return std::string(model.status().message());
}

TEST(TokenizerJson, ReadsMergesInBothForms) {
  const ByteLevelTokenizer tokenizer(ParseTokenizerJson(SmallTokenizer().dump(), "t.json").value());
  std::vector<std::int32_t> ids;
  ASSERT_TRUE(tokenizer.NewEncoder({})->Encode("abcab b", ids).ok());
  EXPECT_THAT(ids, testing::ElementsAre(257, 256, ' ', 'b'));
  EXPECT_EQ(tokenizer.Decode(ids), "abcab b");
  EXPECT_EQ(tokenizer.vocab_size(), 258);
  EXPECT_EQ(tokenizer.FindToken("abc"), 257);
  EXPECT_EQ(tokenizer.FindToken("abd"), std::nullopt);
  EXPECT_EQ(tokenizer.Decode(std::vector<std::int32_t>{-1, 'x', 1000000}), "x");
}

TEST(TokenizerJson, TwoHundredThousandEqualBytesAreMergedInTime) {
  const ByteLevelTokenizer tokenizer(ParseTokenizerJson(SmallTokenizer().dump(), "t.json").value());
  std::string text;
  for (int i = 0; i < 100000; ++i) text += "ab";
  std::vector<std::int32_t> ids;
  ASSERT_TRUE(tokenizer.NewEncoder({})->Encode(text, ids).ok());
  EXPECT_EQ(ids.size(), 100000U);
}

TEST(TokenizerJson, RefusesByNameWhatWouldChangeIds) {
  const auto part = [](const char* key, json value) {
    return ErrorOf([&](json& document) { document[key] = std::move(value); });
  };
  EXPECT_THAT(part("normalizer", {{"type", "NFKC"}}), HasSubstr("normalizer.type is NFKC"));
  const json lowercase = {{"type", "Lowercase"}};
  EXPECT_THAT(part("normalizer", {{"type", "Sequence"}, {"normalizers", json::array({lowercase})}}),
              HasSubstr("Lowercase"));
  EXPECT_THAT(part("pre_tokenizer", {{"type", "Metaspace"}}), HasSubstr("Metaspace"));
  EXPECT_THAT(part("pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", true}}),
              HasSubstr("add_prefix_space"));
  EXPECT_THAT(part("pre_tokenizer", nullptr), HasSubstr("pre_tokenizer"));
  const auto model = [](const char* key, json value) {
    return ErrorOf([&](json& document) { document["model"][key] = std::move(value); });
  };
  EXPECT_THAT(model("type", "Unigram"), HasSubstr("model.type is Unigram"));
  EXPECT_THAT(model("byte_fallback", true), HasSubstr("byte_fallback"));
  EXPECT_THAT(model("dropout", 0.1), HasSubstr("dropout"));
  EXPECT_THAT(model("end_of_word_suffix", "</w>"), HasSubstr("end_of_word_suffix"));
}

TEST(TokenizerJson, RefusesSplitsThatItCannotMake) {
  const auto split = [](json part) {
    return ErrorOf([&](json& document) {
      document["pre_tokenizer"] = {
          {"type", "Sequence"},
          {"pretokenizers",
           json::array({std::move(part), {{"type", "ByteLevel"}, {"add_prefix_space", false}}})}};
    });
  };
  const json regex = {{"Regex", "a"}};
  EXPECT_THAT(split({{"type", "Split"}, {"pattern", regex}, {"behavior", "Removed"}}),
              HasSubstr("Removed"));
  EXPECT_THAT(
      split({{"type", "Split"}, {"pattern", regex}, {"behavior", "Isolated"}, {"invert", true}}),
      HasSubstr("invert"));
  EXPECT_THAT(
      split({{"type", "Split"}, {"pattern", {{"Regex", "[a&&b]"}}}, {"behavior", "Isolated"}}),
      HasSubstr("intersects"));
  EXPECT_THAT(split({{"type", "Punctuation"}}), HasSubstr("Punctuation"));
}

TEST(TokenizerJson, RefusesVocabulariesThatDoNotFitTogether) {
  EXPECT_THAT(ErrorOf([](json& d) { d["model"]["vocab"].erase("a"); }), HasSubstr("all bytes"));
  EXPECT_THAT(ErrorOf([](json& d) { d["model"]["vocab"]["x1"] = 256; }),
              HasSubstr("shares id 256"));
  EXPECT_THAT(ErrorOf([](json& d) { d["model"]["vocab"]["x1"] = -1; }),
              HasSubstr("must have an id"));
  EXPECT_THAT(ErrorOf([](json& d) { d["model"]["vocab"]["x1"] = 1e9; }),
              HasSubstr("must have an id"));
  EXPECT_THAT(ErrorOf([](json& d) { d["model"]["merges"].push_back("a z"); }),
              HasSubstr("model.merges[2]"));
  EXPECT_THAT(ErrorOf([](json& d) { d["model"]["merges"].push_back(7); }),
              HasSubstr("model.merges[2]"));
  const json token = {{"id", 256}, {"content", "<x>"}, {"special", true}};
  EXPECT_THAT(ErrorOf([&](json& d) { d["added_tokens"].push_back(token); }),
              HasSubstr("shares id 256"));
  json spaced = token;
  spaced["lstrip"] = true;
  EXPECT_THAT(ErrorOf([&](json& d) { d["added_tokens"].push_back(spaced); }), HasSubstr("lstrip"));
  EXPECT_THAT(std::string(ParseTokenizerJson("[", "t.json").status().message()),
              HasSubstr("must be a JSON object"));
}

}  // namespace
}  // namespace takt::tokenizer
