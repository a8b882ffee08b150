// SPDX-License-Identifier: Apache-2.0
#include "common/tokenizer/tokenizer_folder.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"

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
