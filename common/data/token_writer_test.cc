// SPDX-License-Identifier: Apache-2.0
#include "common/data/token_writer.h"

#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/data/corpus.h"
#include "common/data/token_origin.h"
#include "gmock/gmock.h"

namespace takt::data {
namespace {

namespace fs = std::filesystem;
using config::DataFormat;
using testing::ElementsAre;
using Ids = std::vector<std::int32_t>;

class TokenWriterTest : public testing::Test {
 protected:
  TokenWriterTest() { EXPECT_NE(mkdtemp(directory_.data()), nullptr); }
  ~TokenWriterTest() override { fs::remove_all(directory_); }

  std::string Path(const std::string& name) const { return directory_ + "/" + name; }
  TokenWriterOptions Megatron() const {
    return {.path = Path("a.bin"), .type = TokenType::kU16, .has_index = true};
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(directory_)) {
      names.push_back(entry.path().filename().string());
    }
    std::ranges::sort(names);
    return names;
  }
  Corpus Open(const std::string& name, DataFormat format) const {
    return Corpus::Open({.path = Path(name), .data_root = "/", .format = format}).value();
  }
  static Ids Read(const Corpus& corpus) {
    Ids ids;
    for (const Corpus::Shard& shard : corpus.shards()) {
      for (std::int64_t i = 0; i < shard.file.tokens.size(); ++i) {
        ids.push_back(static_cast<std::int32_t>(shard.file.tokens.At(i)));
      }
    }
    return ids;
  }

  std::string directory_ = testing::TempDir() + "/takt-writer-XXXXXX";
};

TEST_F(TokenWriterTest, WritesStreamsThatACorpusReads) {
  for (const TokenType type : {TokenType::kU16, TokenType::kU32}) {
    const std::string name = type == TokenType::kU16 ? "16.bin" : "32.bin";
    auto writer = TokenWriter::Open({.path = Path(name), .type = type}, 0, 0).value();
    ASSERT_TRUE(writer.Append(Ids{1, 65535, 3}, Ids{3}).ok());
    ASSERT_TRUE(writer.Append(Ids{4}, Ids{1}).ok());
    EXPECT_FALSE(fs::exists(Path(name)));
    ASSERT_TRUE(writer.Publish("{}").ok());
    const auto format = type == TokenType::kU16 ? DataFormat::kUint16 : DataFormat::kUint32;
    EXPECT_THAT(Read(Open(name, format)), ElementsAre(1, 65535, 3, 4));
  }
  EXPECT_THAT(Names(), ElementsAre("16.bin", "16.bin.json", "32.bin", "32.bin.json"));
}

TEST_F(TokenWriterTest, WritesAnIndexOfDocuments) {
  auto writer = TokenWriter::Open(Megatron(), 0, 0).value();
  ASSERT_TRUE(writer.Append(Ids{1, 2, 3}, Ids{2, 1}).ok());
  ASSERT_TRUE(writer.Append(Ids{4, 5}, Ids{2}).ok());
  ASSERT_TRUE(writer.Publish(FormatTokenOrigin({.tokens = 5})).ok());
  const Corpus corpus = Open("a", DataFormat::kMegatron);
  EXPECT_EQ(corpus.num_documents(), 3);
  EXPECT_THAT(Read(corpus), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(Names(), ElementsAre("a.bin", "a.bin.json", "a.idx"));
  EXPECT_EQ(ReadTokenOrigin(Path("a.bin")).value()->tokens, 5);
}

TEST_F(TokenWriterTest, GoesOnAfterWhatCounts) {
  {
    auto writer = TokenWriter::Open(Megatron(), 0, 0).value();
    ASSERT_TRUE(writer.Append(Ids{1, 2, 3, 9, 9}, Ids{2, 1, 2}).ok());
  }
  EXPECT_EQ(TokenWriter::Open(Megatron(), 6, 3).status().code(), absl::StatusCode::kDataLoss);
  auto writer = TokenWriter::Open(Megatron(), 3, 2).value();
  ASSERT_TRUE(writer.Append(Ids{4}, Ids{1}).ok());
  ASSERT_TRUE(writer.Publish("{}").ok());
  const Corpus corpus = Open("a", DataFormat::kMegatron);
  EXPECT_THAT(Read(corpus), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(corpus.num_documents(), 3);
}

TEST_F(TokenWriterTest, HasItsFilesForItself) {
  const auto writer = TokenWriter::Open(Megatron(), 0, 0);
  ASSERT_TRUE(writer.ok());
  EXPECT_THAT(std::string(TokenWriter::Open(Megatron(), 0, 0).status().message()),
              testing::HasSubstr("is being written by another process"));
  EXPECT_THAT(
      std::string(TokenWriter::Open({.path = "/nonexistent/a.bin"}, 0, 0).status().message()),
      testing::HasSubstr("--out is /nonexistent/a.bin: cannot be written"));
}

TEST_F(TokenWriterTest, LeavesItsFilesToTheNextOnceItIsGone) {
  {
    const auto writer = TokenWriter::Open(Megatron(), 0, 0);
    ASSERT_TRUE(writer.ok());
  }
  EXPECT_TRUE(TokenWriter::Open(Megatron(), 0, 0).ok());
}

TEST_F(TokenWriterTest, OverwritesNothing) {
  const TokenWriterOptions options = {.path = Path("a.bin")};
  const auto taken = testing::HasSubstr("nothing is overwritten");
  auto writer = TokenWriter::Open(options, 0, 0).value();
  ASSERT_TRUE(writer.Append(Ids{1}, Ids{1}).ok());
  std::ofstream(Path("a.bin")) << "of another process";
  EXPECT_THAT(std::string(writer.Publish("{}").message()), taken);
  EXPECT_EQ(fs::file_size(Path("a.bin")), 18U);
  EXPECT_FALSE(fs::exists(Path("a.bin.json")));
  EXPECT_THAT(std::string(TokenWriter::Open(options, 0, 0).status().message()), taken);
}

// Many writers begin at once, as two runs of the same command may. One of them writes the output,
// and no other one changes it.
TEST_F(TokenWriterTest, OneOfManyWritersWritesTheOutput) {
  constexpr int kWriters = 8, kRounds = 20;
  for (int round = 0; round < kRounds; ++round) {
    const std::string name = absl::StrCat(round, ".bin");
    std::atomic<int> published = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < kWriters; ++i) {
      threads.emplace_back([&] {
        auto writer = TokenWriter::Open({.path = Path(name)}, 0, 0);
        if (!writer.ok() || !writer->Append(Ids{1, 2, 3}, Ids{3}).ok()) return;
        if (writer->Publish("{}").ok()) ++published;
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(published, 1);
    EXPECT_THAT(Read(Open(name, DataFormat::kUint16)), ElementsAre(1, 2, 3));
    EXPECT_FALSE(fs::exists(Path("." + name + ".partial")));
  }
}

}  // namespace
}  // namespace takt::data
