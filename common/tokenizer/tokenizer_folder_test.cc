// SPDX-License-Identifier: Apache-2.0
#include "common/tokenizer/tokenizer_folder.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"

namespace takt::tokenizer {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// A folder with a copy of a golden tokenizer.
class Folder {
 public:
  explicit Folder(const std::string& golden) {
    EXPECT_NE(mkdtemp(path_.data()), nullptr);
    if (!golden.empty()) {
      fs::copy(absl::StrCat(TAKT_SOURCE_DIR, "/tests/golden/tokenizer/", golden), path_);
    }
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ + "/" + name) << text;
  }
  absl::StatusOr<TokenizerFolder> Open() const { return OpenTokenizerFolder("--tokenizer", path_); }
  std::string Error() const { return std::string(Open().status().message()); }

 private:
  std::string path_ = testing::TempDir() + "/takt-tokenizer-XXXXXX";
};

TEST(TokenizerFolder, FindsTheTokenThatEndsADocument) {
  const Folder folder("qwen2");
  const auto opened = folder.Open();
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->file, "tokenizer.json");
  EXPECT_EQ(opened->hash.size(), 32U);
  EXPECT_EQ(opened->end_of_document, 0);
  folder.Write("tokenizer_config.json", R"({"eos_token": {"content": "<|keep|>"}})");
  EXPECT_EQ(folder.Open()->end_of_document, folder.Open()->tokenizer->FindToken("<|keep|>"));
  folder.Write("tokenizer_config.json", "{}");
  EXPECT_EQ(folder.Open()->end_of_document, std::nullopt);
  folder.Write("config.json", R"({"eos_token_id": [7, 8]})");
  EXPECT_EQ(folder.Open()->end_of_document, 7);
  folder.Write("config.json", R"({"eos_token_id": 100000000})");
  EXPECT_EQ(folder.Open()->end_of_document, std::nullopt);
}

TEST(TokenizerFolder, TakesTheModelOfSentencePieceWhereTheOtherFileCannotBeRead) {
  const Folder folder("llama2");
  EXPECT_EQ(folder.Open()->file, "tokenizer.model");
  EXPECT_EQ(folder.Open()->end_of_document, 2);
  folder.Write("tokenizer.json", R"({"model": {"type": "BPE", "byte_fallback": true}})");
  EXPECT_EQ(folder.Open()->file, "tokenizer.model");
}

// Returns the golden file of `name` with a post-processor whose template begins with `token`.
std::string WithTemplate(const std::string& name, const std::string& token) {
  std::ifstream in(absl::StrCat(TAKT_SOURCE_DIR, "/tests/golden/tokenizer/", name));
  nlohmann::json file = nlohmann::json::parse(in);
  file["post_processor"] =
      nlohmann::json::parse(absl::StrCat(R"({"type": "Sequence", "processors": [
      {"type": "ByteLevel", "trim_offsets": false},
      {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": ")",
                                         token, R"(", "type_id": 0}},
                                                {"Sequence": {"id": "A", "type_id": 0}}]}]})"));
  return file.dump();
}

TEST(TokenizerFolder, FindsTheTokenBeforeADocument) {
  const Folder folder("qwen2");
  EXPECT_EQ(folder.Open()->begin_of_document, std::nullopt);
  folder.Write("tokenizer.json", WithTemplate("qwen2/tokenizer.json", "<|keep|>"));
  const auto keep = folder.Open()->tokenizer->FindToken("<|keep|>");
  ASSERT_TRUE(keep.has_value());
  EXPECT_EQ(folder.Open()->begin_of_document, keep);
  folder.Write("tokenizer_config.json", R"({"add_bos_token": false, "bos_token": "<|keep|>"})");
  EXPECT_EQ(folder.Open()->begin_of_document, std::nullopt);
  folder.Write("tokenizer_config.json", R"({"add_bos_token": true, "bos_token": "<tool>"})");
  EXPECT_EQ(folder.Open()->begin_of_document, folder.Open()->tokenizer->FindToken("<tool>"));
}

TEST(TokenizerFolder, ModelsOfSentencePieceBeginWithTheirControlPiece) {
  const Folder folder("llama2");
  EXPECT_EQ(folder.Open()->begin_of_document, 1);
  folder.Write("tokenizer_config.json", R"({"add_bos_token": true, "bos_token": "<s>"})");
  EXPECT_EQ(folder.Open()->begin_of_document, 1);
  folder.Write("tokenizer_config.json", R"({"add_bos_token": false, "bos_token": "<s>"})");
  EXPECT_EQ(folder.Open()->begin_of_document, std::nullopt);
}

TEST(TokenizerFolder, SaysWhatIsWrong) {
  const Folder empty("");
  EXPECT_THAT(empty.Error(), HasSubstr("holds neither tokenizer.json nor tokenizer.model"));
  EXPECT_EQ(empty.Open().status().code(), absl::StatusCode::kFailedPrecondition);
  empty.Write("tokenizer.json", "{}");
  EXPECT_THAT(empty.Error(), HasSubstr("model: is missing"));
  const Folder folder("gpt2");
  folder.Write("tokenizer_config.json", "[]");
  EXPECT_THAT(folder.Error(), HasSubstr("tokenizer_config.json"));
}

}  // namespace
}  // namespace takt::tokenizer
