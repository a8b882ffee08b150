// SPDX-License-Identifier: Apache-2.0
#include "common/data/token_file.h"

#include <algorithm>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/safetensors.h"
#include "common/data/testing/token_bytes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::data {
namespace {

using config::DataFormat;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string ReadGolden(const std::string& name) {
  std::ifstream in(absl::StrCat(TAKT_SOURCE_DIR, "/tests/golden/models/", name));
  return {std::istreambuf_iterator<char>(in), {}};
}

absl::StatusOr<TokenFile> Parse(const std::string& file, DataFormat format,
                                const std::string& index = "") {
  return ParseTokenFile({.file = AsBytes(file), .index = AsBytes(index)},
                        {.format = format, .path = "t"});
}

std::string ErrorOf(const std::string& file, DataFormat format, const std::string& index = "") {
  return std::string(Parse(file, format, index).status().message());
}

std::vector<std::int32_t> All(const TokenValues& values) {
  std::vector<std::int32_t> all(values.size());
  values.Read(0, all);
  return all;
}

TEST(TokenFile, StreamsAreLittleEndian) {
  const std::string text("\x01\x02\0\0\xff\xff\xff\x7f", 8);
  EXPECT_THAT(All(Parse(text, DataFormat::kBytes)->tokens),
              ElementsAre(1, 2, 0, 0, 255, 255, 255, 127));
  EXPECT_THAT(All(Parse(text, DataFormat::kUint16)->tokens), ElementsAre(0x201, 0, 0xffff, 0x7fff));
  EXPECT_THAT(All(Parse(text, DataFormat::kUint32)->tokens), ElementsAre(0x201, 0x7fffffff));
  EXPECT_EQ(Parse(text, DataFormat::kBytes)->row_length, 0);
}

// The stream and the tensors of this case hold the same ten batches of 8 windows.
TEST(TokenFile, StreamAndTensorsOfTheGoldenCaseAgree) {
  const std::string stream_text = ReadGolden("gpt2-tiny/tokens.bin");
  const std::string tensors_text = ReadGolden("gpt2-tiny/train_batches.safetensors");
  const TokenFile stream = *Parse(stream_text, DataFormat::kUint16);
  const TokenFile tensors = *Parse(tensors_text, DataFormat::kSafetensors);
  EXPECT_EQ(tensors.row_length, 32);
  ASSERT_EQ(stream.tokens.size(), 2561);
  ASSERT_EQ(tensors.tokens.size(), 2560);
  const std::vector<std::int32_t> all = All(stream.tokens);
  EXPECT_EQ(All(tensors.tokens), std::vector(all.begin(), all.end() - 1));
  EXPECT_EQ(All(tensors.targets), std::vector(all.begin() + 1, all.end()));
}

TEST(TokenFile, KeepsTargetsThatAreNotScored) {
  const std::string text = ReadGolden("gpt2-ignore-index/batch.safetensors");
  const TokenFile file = *Parse(text, DataFormat::kSafetensors);
  const std::vector<std::int32_t> targets = All(file.targets);
  EXPECT_EQ(targets.size(), 6u * 24);
  EXPECT_EQ(std::count(targets.begin(), targets.end(), kIgnoredTarget),
            6 * 24 - 84);  // train.json counts 84 targets in this batch
}

TEST(TokenFile, RefusesFilesThatCannotBeRead) {
  EXPECT_EQ(ErrorOf("", DataFormat::kBytes),
            "data.train.path is t: the file is empty; name a file that holds tokens");
  EXPECT_EQ(ErrorOf("abc", DataFormat::kUint16),
            "data.train.path is t: has 3 bytes, which is no whole number of uint16 tokens; check "
            "the format, or whether the file is complete");
  EXPECT_THAT(ErrorOf("abcdef", DataFormat::kUint32), HasSubstr("no whole number of uint32"));
  EXPECT_EQ(ErrorOf("abcdefghijk", DataFormat::kSafetensors),
            "data.train.path is t: is not a safetensors file: t: header length 7523094288207667809 "
            "is too large; check the format");
  EXPECT_EQ(ErrorOf("abc", DataFormat::kLlmc),
            "data.train.path is t: has 3 bytes; the header of an llm.c shard alone has 1024; name "
            "a complete token shard of llm.c, or another format");
  EXPECT_EQ(ErrorOf(LlmcShard(20240520, 1, 0, ""), DataFormat::kLlmc),
            "data.train.path is t: holds no tokens; name a file that holds tokens");
  EXPECT_EQ(ErrorOf("abc", DataFormat::kMegatron, "abc"),
            "data.train.path is t: has an index of 3 bytes; its header alone has 34; use the .idx "
            "and the .bin of one run of preprocess_data.py");
}

TEST(TokenFile, RefusesToReadAHeaderAsTokens) {
  const std::string shard = LlmcShard(20240520, 1, 2, Stream<std::uint16_t>({1, 2}));
  EXPECT_EQ(ErrorOf(shard, DataFormat::kUint16),
            "data.train.path is t: is a shard of llm.c: it begins with a header; use format llmc");
  EXPECT_THAT(ErrorOf(shard, DataFormat::kUint32), HasSubstr("use format llmc"));
}

TEST(TokenFile, RefusesTensorsOfAnotherShape) {
  const auto file = [](const std::vector<std::int32_t>& values, std::vector<std::int64_t> shape,
                       const char* dtype = "I32") {
    const auto bytes = std::as_bytes(std::span(values));
    return checkpoint::FormatSafetensors(
        {{.name = "tokens", .dtype = dtype, .shape = shape, .bytes = bytes},
         {.name = "targets", .dtype = dtype, .shape = shape, .bytes = bytes}});
  };
  const auto error = [](const std::string& text) {
    return ErrorOf(text, DataFormat::kSafetensors);
  };
  const std::vector<std::int32_t> values = {1, 2, 3, 4};
  EXPECT_THAT(error(file(values, {4})), HasSubstr("[N,T]"));
  EXPECT_THAT(error(file(values, {2, 2}, "F32")), HasSubstr("I32"));
  EXPECT_THAT(error(file({}, {0, 2})), HasSubstr("holds no tokens"));
  EXPECT_THAT(error(checkpoint::FormatSafetensors({})),
              HasSubstr("must hold the tensors `tokens` and `targets`"));
}

TEST(TokenFile, RefusesDocumentsOfAnotherShape) {
  const std::vector<std::int32_t> values = {1, 2, 3, 4};
  const auto bytes = std::as_bytes(std::span(values));
  const auto error = [&](const char* name, const char* dtype, std::vector<std::int64_t> shape) {
    return ErrorOf(checkpoint::FormatSafetensors(
                       {{.name = "tokens", .dtype = "I32", .shape = {2, 2}, .bytes = bytes},
                        {.name = "targets", .dtype = "I32", .shape = {2, 2}, .bytes = bytes},
                        {.name = name, .dtype = dtype, .shape = std::move(shape), .bytes = bytes}}),
                   DataFormat::kSafetensors);
  };
  EXPECT_THAT(error("document", "F32", {2, 2}), HasSubstr("`document` must be I32"));
  EXPECT_THAT(error("positions", "I32", {4}), HasSubstr("`positions` must be I32"));
}

TEST(TokenValues, FindsTheFirstIdOutside) {
  const std::string wide = Stream<std::uint32_t>({0, 4294967295});
  const TokenValues values(TokenType::kU32, AsBytes(wide));
  EXPECT_EQ(values.FindOutside(1 << 24, false), 1);
  EXPECT_EQ(values.Shown(1), "4294967295");
  EXPECT_EQ(values.Largest(), 4294967295);
  const std::string masked = Stream<std::int32_t>({3, kIgnoredTarget, -1});
  const TokenValues targets(TokenType::kI32, AsBytes(masked));
  EXPECT_EQ(targets.FindOutside(4, false), 1);
  EXPECT_EQ(targets.FindOutside(4, true), 2);
  EXPECT_EQ(targets.FindOutside(3, true), 0);
}

TEST(TokenValues, ReadsNothingWhereEveryIdIsInside) {
  const std::string text = "\xff";
  EXPECT_EQ(TokenValues(TokenType::kU8, AsBytes(text)).FindOutside(256, false), 1);
  EXPECT_EQ(TokenValues(TokenType::kU8, AsBytes(text)).FindOutside(255, false), 0);
}

}  // namespace
}  // namespace takt::data
