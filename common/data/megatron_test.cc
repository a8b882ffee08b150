// SPDX-License-Identifier: Apache-2.0
#include "common/data/megatron.h"

#include <cstdint>

#include "common/data/testing/token_bytes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::data {
namespace {

using testing::HasSubstr;

// Three sequences of 2, 0 and 3 tokens in two documents.
MegatronIndex GoodIndex() {
  return {.lengths = {2, 0, 3}, .pointers = {0, 4, 4}, .documents = {0, 2, 3}};
}

const std::string kData = Stream<std::uint16_t>({1, 2, 3, 4, 65535});

std::string ErrorOf(const MegatronIndex& index, const std::string& data = kData) {
  const std::string bytes = index.ToBytes();
  return std::string(ParseMegatron(AsBytes(bytes), AsBytes(data)).status().message());
}

TEST(Megatron, ReadsSequencesEndToEnd) {
  const std::string index = GoodIndex().ToBytes();
  const MegatronData data = *ParseMegatron(AsBytes(index), AsBytes(kData));
  EXPECT_EQ(data.num_sequences, 3);
  EXPECT_EQ(data.num_documents, 2);
  EXPECT_EQ(data.tokens.size(), 5);
  EXPECT_EQ(data.tokens.At(4), 65535);
}

TEST(Megatron, ReadsEveryType) {
  const auto last = [](std::uint8_t code, const std::string& data) {
    const int width = static_cast<int>(data.size()) / 2;
    const std::string index = MegatronIndex{
        .type_code = code,
        .lengths = {1, 1},
        .pointers = {0, width},
        .documents = {0, 2}}.ToBytes();
    const auto parsed = ParseMegatron(AsBytes(index), AsBytes(data));
    return parsed.ok() ? parsed->tokens.At(1) : -2;
  };
  EXPECT_EQ(last(1, Stream<std::uint8_t>({0, 200})), 200);
  EXPECT_EQ(last(2, Stream<std::int8_t>({0, 100})), 100);
  EXPECT_EQ(last(3, Stream<std::int16_t>({0, 30000})), 30000);
  EXPECT_EQ(last(4, Stream<std::int32_t>({0, 1 << 30})), 1 << 30);
  EXPECT_EQ(last(5, Stream<std::int64_t>({0, 50256})), 50256);
  EXPECT_EQ(last(6, Stream<double>({0, 50256})), 50256);
  EXPECT_EQ(last(7, Stream<float>({0, 50256})), 50256);
  EXPECT_EQ(last(8, Stream<std::uint16_t>({0, 65535})), 65535);
}

TEST(Megatron, WhatIsNoWholeNumberIsNoToken) {
  std::string data;
  for (const double value : {1.0, 1.5, -1.0, 1e300}) Put(data, value);
  const TokenValues values(TokenType::kF64, AsBytes(data));
  EXPECT_EQ(values.FindOutside(10, false), 1);
  EXPECT_EQ(values.Shown(1), "1.5");
  EXPECT_EQ(values.At(3), -1);
}

TEST(Megatron, RefusesHeadersThatItCannotRead) {
  const auto error = [](const std::string& index) {
    return std::string(ParseMegatron(AsBytes(index), AsBytes(kData)).status().message());
  };
  const std::string good = GoodIndex().ToBytes();
  EXPECT_EQ(error(good.substr(0, 33)), "has an index of 33 bytes; its header alone has 34");
  std::string other = good;
  other[0] = 'X';
  EXPECT_EQ(error(other), "has an index that does not begin with MMIDIDX");
  MegatronIndex index = GoodIndex();
  index.version = 2;
  EXPECT_EQ(ErrorOf(index), "has an index of version 2; version 1 is known");
  for (const std::uint8_t code : {0, 9, 255}) {
    index = GoodIndex();
    index.type_code = code;
    EXPECT_THAT(ErrorOf(index), HasSubstr("codes are 1 to 8"));
  }
}

TEST(Megatron, RefusesCountsThatTheIndexCannotHold) {
  const std::string good = GoodIndex().ToBytes();
  EXPECT_EQ(std::string(ParseMegatron(AsBytes(good.substr(0, good.size() - 1)), AsBytes(kData))
                            .status()
                            .message()),
            "has an index that announces 3 sequences and 3 document boundaries, which 93 bytes "
            "cannot hold");
  EXPECT_THAT(std::string(ParseMegatron(AsBytes(good + "x"), AsBytes(kData)).status().message()),
              HasSubstr("which 95 bytes exceed"));
  // Counts whose products wrap around 2^64 to what is there.
  for (const std::uint64_t count : {UINT64_MAX, std::uint64_t{1} << 62, std::uint64_t{1} << 63}) {
    for (const int offset : {18, 26}) {
      std::string bad = good;
      std::memcpy(bad.data() + offset, &count, sizeof(count));
      EXPECT_THAT(std::string(ParseMegatron(AsBytes(bad), AsBytes(kData)).status().message()),
                  HasSubstr("cannot hold"));
    }
  }
}

TEST(Megatron, RefusesSequencesThatDoNotTileTheData) {
  MegatronIndex index = GoodIndex();
  index.pointers[2] = 6;
  EXPECT_EQ(ErrorOf(index),
            "has an index whose sequence 2 begins at byte 6; the one before ends at 4");
  index = GoodIndex();
  index.lengths[1] = -1;
  EXPECT_EQ(ErrorOf(index), "has an index whose sequence 1 has length -1");
  EXPECT_EQ(ErrorOf(GoodIndex(), kData.substr(0, 8)),
            "has an index whose sequence 2 of 3 uint16 tokens begins at byte 4; the data has 8 "
            "bytes");
  EXPECT_EQ(ErrorOf(GoodIndex(), kData + "ab"),
            "has an index that describes 10 bytes of data; the data has 12");
}

TEST(Megatron, RefusesDocumentsThatDoNotTileTheSequences) {
  const auto error = [](std::vector<std::int64_t> documents) {
    MegatronIndex index = GoodIndex();
    index.documents = std::move(documents);
    return ErrorOf(index);
  };
  EXPECT_EQ(error({}), "has an index whose documents do not begin with sequence 0");
  EXPECT_EQ(error({1, 3}), "has an index whose documents do not begin with sequence 0");
  EXPECT_EQ(error({0, 2, 1, 3}),
            "has an index whose document 1 ends before it begins, at sequence 1");
  EXPECT_EQ(error({0, 2}), "has an index whose documents end at sequence 2; there are 3");
  EXPECT_EQ(error({0, 4}), "has an index whose documents end at sequence 4; there are 3");
}

TEST(Megatron, TakesModesOfTextOnly) {
  MegatronIndex index = GoodIndex();
  index.modes = std::string(3, '\0');
  EXPECT_EQ(ErrorOf(index), "");
  index.modes[2] = 1;
  EXPECT_EQ(ErrorOf(index),
            "has an index whose sequence 2 has mode 1; only text (mode 0) can be trained on");
}

}  // namespace
}  // namespace takt::data
