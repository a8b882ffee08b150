// SPDX-License-Identifier: Apache-2.0
// Compares ids and texts with those of the reference packages (tests/golden/tokenizer).
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/tokenizer/tokenizer_folder.h"
#include "common/tokenizer/utf8.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"

namespace takt::tokenizer {
namespace {

using nlohmann::json;
using Ids = std::vector<std::int32_t>;

std::string Folder() { return absl::StrCat(TAKT_SOURCE_DIR, "/tests/golden/tokenizer"); }

const json& Expected() {
  static const json* const expected = [] {
    std::ifstream in(Folder() + "/expected.json");
    return new json(json::parse(in));
  }();
  return *expected;
}

std::vector<std::string> Cases() {
  std::vector<std::string> cases;
  for (const json& encoded : Expected()["cases"]) {
    std::string bytes;
    EXPECT_TRUE(absl::Base64Unescape(encoded.get<std::string>(), &bytes));
    cases.push_back(std::move(bytes));
  }
  return cases;
}

Ids Encode(Encoder& encoder, const std::string& bytes) {
  std::string storage;
  Ids ids;
  EXPECT_TRUE(encoder.Encode(ReplaceInvalidUtf8(bytes, storage).text, ids).ok());
  return ids;
}

class GoldenTokenizer : public testing::TestWithParam<std::string> {
 protected:
  const TokenizerFolder folder_ =
      OpenTokenizerFolder("tokenizer", absl::StrCat(Folder(), "/", GetParam())).value();
  const json& expected_ = Expected()["tokenizers"][GetParam()];
  const std::vector<std::string> cases_ = Cases();
};

TEST_P(GoldenTokenizer, GivesTheIdsOfTheReference) {
  for (const std::string kind : {"plain", "special"}) {
    if (!expected_.contains(kind)) continue;
    const auto encoder =
        folder_.tokenizer->NewEncoder(EncodeOptions{.special_tokens = kind == "special"});
    ASSERT_EQ(cases_.size(), expected_[kind].size());
    for (std::size_t i = 0; i < cases_.size(); ++i) {
      const Ids expected = expected_[kind][i].get<Ids>();
      EXPECT_EQ(Encode(*encoder, cases_[i]), expected) << kind << " case " << i;
      // The second answer comes from the cache.
      EXPECT_EQ(Encode(*encoder, cases_[i]), expected) << kind << " case " << i << " again";
    }
  }
}

TEST_P(GoldenTokenizer, DecodesAsTheReference) {
  const json& ids = expected_.contains("special") ? expected_["special"] : expected_["plain"];
  for (std::size_t i = 0; i < cases_.size(); ++i) {
    std::string storage;
    const std::string decoded = folder_.tokenizer->Decode(ids[i].get<Ids>());
    EXPECT_EQ(ReplaceInvalidUtf8(decoded, storage).text, expected_["decoded"][i].get<std::string>())
        << "case " << i;
  }
}

TEST_P(GoldenTokenizer, EveryIdIsBelowTheSizeOfTheVocabulary) {
  for (const json& ids : expected_["plain"]) {
    for (const std::int32_t id : ids.get<Ids>()) EXPECT_LT(id, folder_.tokenizer->vocab_size());
  }
}

INSTANTIATE_TEST_SUITE_P(All, GoldenTokenizer,
                         testing::Values("gpt2", "llama3", "qwen2", "digits", "llama2", "bpe-wide",
                                         "unigram", "unigram-bytes"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace takt::tokenizer
