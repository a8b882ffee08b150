// SPDX-License-Identifier: Apache-2.0
#include "common/data/token_file.h"

#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::data {
namespace {

using config::DataFormat;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::span<const std::byte> Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string ReadGolden(const std::string& name) {
  std::ifstream in(absl::StrCat(TAKT_SOURCE_DIR, "/tests/golden/models/", name));
  return {std::istreambuf_iterator<char>(in), {}};
}

absl::StatusOr<TokenFile> Open(const std::string& file, DataFormat format, int context) {
  return TokenFile::Open(Bytes(file), {.format = format, .context = context, .path = "t"});
}

struct Window {
  std::vector<std::int32_t> tokens, targets;
  bool operator==(const Window&) const = default;
};

Window Read(const TokenFile& file, std::int64_t index) {
  Window window{std::vector<std::int32_t>(file.context()),
                std::vector<std::int32_t>(file.context())};
  file.ReadWindow(index, window.tokens, window.targets);
  return window;
}

std::string ErrorOf(const absl::Status& status) { return std::string(status.message()); }

TEST(TokenFile, BytesAreTokensAndTargetsAreShiftedByOne) {
  const std::string text = "abcdefg\xff";
  const TokenFile file = *Open(text, DataFormat::kBytes, 3);
  EXPECT_EQ(file.num_tokens(), 8);
  EXPECT_EQ(file.num_windows(), 2);
  EXPECT_THAT(Read(file, 1).tokens, ElementsAre('d', 'e', 'f'));
  EXPECT_THAT(Read(file, 1).targets, ElementsAre('e', 'f', 'g'));
  EXPECT_EQ(Open(text, DataFormat::kBytes, 7)->num_windows(), 1);
  EXPECT_EQ(Read(*Open(text, DataFormat::kBytes, 7), 0).targets[6], 255);
}

TEST(TokenFile, Uint32IsLittleEndian) {
  const std::string text("\x01\x02\0\0\xff\xff\xff\x7f", 8);
  const TokenFile file = *Open(text, DataFormat::kUint32, 1);
  EXPECT_THAT(Read(file, 0).tokens, ElementsAre(0x201));
  EXPECT_THAT(Read(file, 0).targets, ElementsAre(0x7fffffff));
}

// The stream and the tensors of this case hold the same ten batches of 8 windows.
TEST(TokenFile, StreamAndTensorsOfTheGoldenCaseAgree) {
  const std::string stream_text = ReadGolden("gpt2-tiny/tokens.bin");
  const std::string tensors_text = ReadGolden("gpt2-tiny/train_batches.safetensors");
  const TokenFile stream = *Open(stream_text, DataFormat::kUint16, 32);
  const TokenFile tensors = *Open(tensors_text, DataFormat::kSafetensors, 32);
  EXPECT_EQ(stream.num_tokens(), 2561);
  ASSERT_EQ(stream.num_windows(), 80);
  ASSERT_EQ(tensors.num_windows(), 80);
  for (int i = 0; i < 80; ++i) EXPECT_EQ(Read(stream, i), Read(tensors, i)) << i;
  EXPECT_TRUE(stream.CheckVocab(256).ok());
  EXPECT_TRUE(tensors.CheckVocab(256).ok());
}

TEST(TokenFile, KeepsTargetsThatAreNotScored) {
  const std::string text = ReadGolden("gpt2-ignore-index/batch.safetensors");
  const TokenFile file = *Open(text, DataFormat::kSafetensors, 24);
  EXPECT_TRUE(file.CheckVocab(259).ok());
  EXPECT_EQ(file.num_windows(), 6);
  int ignored = 0;
  for (int i = 0; i < 6; ++i) {
    for (const std::int32_t target : Read(file, i).targets) ignored += target == kIgnoredTarget;
  }
  EXPECT_EQ(ignored, 6 * 24 - 84);  // train.json counts 84 targets in this batch
}

TEST(TokenFile, RefusesFilesThatCannotBeRead) {
  EXPECT_EQ(ErrorOf(Open("", DataFormat::kBytes, 1).status()),
            "data.train.path is t: the file is empty; name a file that holds tokens");
  EXPECT_EQ(ErrorOf(Open("abc", DataFormat::kUint16, 1).status()),
            "data.train.path is t: has 3 bytes, which is no whole number of uint16 tokens; check "
            "data.*.format, or whether "
            "the file is complete");
  EXPECT_EQ(ErrorOf(Open("abc", DataFormat::kBytes, 3).status()),
            "data.train.path is t: holds 3 tokens; one window needs model.context + 1 = 4; use a "
            "longer file or a shorter "
            "context");
  EXPECT_EQ(ErrorOf(Open("abcdefghijk", DataFormat::kSafetensors, 3).status()),
            "data.train.path is t: is not a safetensors file: t: header length 7523094288207667809 "
            "is too large; check "
            "data.*.format");
  EXPECT_EQ(ErrorOf(Open("abc", DataFormat::kLlmc, 1).status()),
            "data.train.format is llmc: is not supported by this version; use bytes, uint16, "
            "uint32 or safetensors");
}

std::string TensorFile(const std::vector<std::int32_t>& values, std::vector<std::int64_t> shape,
                       const char* dtype = "I32") {
  const auto bytes = std::as_bytes(std::span(values));
  return checkpoint::FormatSafetensors(
      {{.name = "tokens", .dtype = dtype, .shape = shape, .bytes = bytes},
       {.name = "targets", .dtype = dtype, .shape = shape, .bytes = bytes}});
}

TEST(TokenFile, RefusesTensorsOfAnotherShape) {
  const std::vector<std::int32_t> values = {1, 2, 3, 4};
  EXPECT_THAT(ErrorOf(Open(TensorFile(values, {2, 2}), DataFormat::kSafetensors, 4).status()),
              HasSubstr("has rows of 2 tokens; model.context is 4; make them equal"));
  EXPECT_THAT(ErrorOf(Open(TensorFile(values, {4}), DataFormat::kSafetensors, 4).status()),
              HasSubstr("[N,T]"));
  EXPECT_THAT(
      ErrorOf(Open(TensorFile(values, {2, 2}, "F32"), DataFormat::kSafetensors, 2).status()),
      HasSubstr("I32"));
  EXPECT_THAT(ErrorOf(Open(TensorFile({}, {0, 2}), DataFormat::kSafetensors, 2).status()),
              HasSubstr("holds no rows"));
  EXPECT_THAT(
      ErrorOf(Open(checkpoint::FormatSafetensors({}), DataFormat::kSafetensors, 2).status()),
      HasSubstr("must hold the tensors `tokens` and `targets`"));
}

TEST(TokenFile, FindsTheFirstTokenBeyondTheVocabulary) {
  const std::string text = "aabz~";
  EXPECT_TRUE(Open(text, DataFormat::kBytes, 2)->CheckVocab('~' + 1).ok());
  EXPECT_EQ(ErrorOf(Open(text, DataFormat::kBytes, 2)->CheckVocab('z')),
            "data.train.path is t: has token 122 at position 3; ids must be 0 to 121 (model.vocab "
            "- 1); raise model.vocab, or "
            "check data.*.format");
  const std::string wide("\0\0\0\0\xff\xff\xff\xff", 8);
  EXPECT_THAT(ErrorOf(Open(wide, DataFormat::kUint32, 1)->CheckVocab(1 << 24)),
              HasSubstr("has token 4294967295 at position 1"));
  const std::string tensors = TensorFile({0, kIgnoredTarget}, {1, 2});
  EXPECT_THAT(ErrorOf(Open(tensors, DataFormat::kSafetensors, 2)->CheckVocab(5)),
              HasSubstr("has token -100 at position 1"));
}

TEST(TokenFile, RefusesFewerWindowsThanAStepNeeds) {
  const std::string text = "abcdefg";
  const TokenFile file = *Open(text, DataFormat::kBytes, 2);
  EXPECT_TRUE(file.CheckHolds(3).ok());
  EXPECT_EQ(ErrorOf(file.CheckHolds(4)),
            "data.train.path is t: holds 3 windows of 2 tokens; one step needs batch.global = 4; "
            "use a longer file, a shorter "
            "context or a smaller batch");
}

}  // namespace
}  // namespace takt::data
