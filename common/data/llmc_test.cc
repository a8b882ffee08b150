// SPDX-License-Identifier: Apache-2.0
#include "common/data/llmc.h"

#include <climits>

#include "common/data/testing/token_bytes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::data {
namespace {

std::string ErrorOf(const std::string& file) {
  return std::string(ParseLlmc(AsBytes(file)).status().message());
}

TEST(Llmc, ReadsBothKindsOfShards) {
  const std::string gpt2 = LlmcShard(20240520, 1, 3, Stream<std::uint16_t>({50256, 0, 65535}));
  const TokenValues narrow = *ParseLlmc(AsBytes(gpt2));
  EXPECT_EQ(narrow.size(), 3);
  EXPECT_EQ(narrow.At(0), 50256);
  EXPECT_EQ(narrow.At(2), 65535);
  const std::string llama = LlmcShard(20240801, 7, 2, Stream<std::uint32_t>({128000, 7}));
  const TokenValues wide = *ParseLlmc(AsBytes(llama));
  EXPECT_EQ(wide.size(), 2);
  EXPECT_EQ(wide.At(0), 128000);
}

TEST(Llmc, RefusesOtherFiles) {
  EXPECT_EQ(ErrorOf("abc"), "has 3 bytes; the header of an llm.c shard alone has 1024");
  EXPECT_EQ(ErrorOf(LlmcShard(1, 1, 0, "")),
            "has magic 1; token shards of llm.c have 20240520 (uint16) or 20240801 (uint32)");
  EXPECT_EQ(ErrorOf(LlmcShard(20240522, 1, 0, "")),
            "has magic 20240522, that of an evaluation set; token shards of llm.c have 20240520 "
            "(uint16) or 20240801 (uint32)");
  EXPECT_EQ(ErrorOf(LlmcShard(20240520, 7, 0, "")),
            "has version 7; llm.c shards of magic 20240520 have version 1");
}

TEST(Llmc, RefusesHeadersThatDoNotMatchTheFile) {
  EXPECT_EQ(ErrorOf(LlmcShard(20240520, 1, 3, "abcd")),
            "is truncated: its header announces 3 uint16 tokens, 1030 bytes in all; it has 1028");
  EXPECT_EQ(ErrorOf(LlmcShard(20240520, 1, 1, "abcd")),
            "is longer than its header says: its header announces 1 uint16 tokens, 1026 bytes in "
            "all; it has 1028");
  EXPECT_EQ(ErrorOf(LlmcShard(20240801, 7, -1, "")), "has a header that announces -1 tokens");
  // Four bytes a token: beyond 32 bits.
  EXPECT_EQ(ErrorOf(LlmcShard(20240801, 7, INT_MAX, "")),
            "is truncated: its header announces 2147483647 uint32 tokens, 8589935612 bytes in all; "
            "it has 1024");
}

}  // namespace
}  // namespace takt::data
