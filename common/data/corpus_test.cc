// SPDX-License-Identifier: Apache-2.0
#include "common/data/corpus.h"

#include <filesystem>
#include <fstream>

#include "common/base/status.h"
#include "common/checkpoint/safetensors.h"
#include "common/data/testing/token_bytes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rapidcheck/gtest.h"

namespace takt::data {
namespace {

namespace fs = std::filesystem;
using config::DataFormat;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class Folder {
 public:
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "takt-corpus-[x]-XXXXXX").string();
    path_ = fs::canonical(mkdtemp(pattern.data()));
  }
  ~Folder() { fs::remove_all(path_); }
  void Write(const std::string& name, const std::string& bytes) const {
    fs::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << bytes;
  }
  absl::StatusOr<Corpus> Open(const std::string& path, DataFormat format) const {
    return Corpus::Open({.path = path, .data_root = path_.string(), .format = format});
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::vector<std::int32_t> Tokens(const Corpus& corpus, std::int64_t window, int context) {
  std::vector<std::int32_t> tokens(context), targets(context);
  corpus.ReadWindow(window, tokens, targets);
  tokens.insert(tokens.end(), targets.begin(), targets.end());
  return tokens;
}

std::vector<std::string> Names(const absl::StatusOr<Corpus>& corpus) {
  std::vector<std::string> names;
  if (!corpus.ok()) return {std::string(corpus.status().message())};
  for (const Corpus::Shard& shard : corpus->shards())
    names.push_back(fs::path(shard.path).filename());
  return names;
}

std::string RuleOf(const absl::Status& status) {
  const std::vector<FieldError> errors = FieldErrorsOf(status);
  return errors.size() == 1 ? errors[0].rule : "not one error: " + status.ToString();
}

TEST(Corpus, CountsDocumentsOverFilesThatMayCutThem) {
  const Folder folder;
  folder.Write("d/a.bin", Stream<std::uint16_t>({1, 0, 2}));
  folder.Write("d/b.bin", Stream<std::uint16_t>({3, 0, 0, 4}));
  const Corpus corpus = folder.Open("d", DataFormat::kUint16).value();
  EXPECT_FALSE(corpus.says_documents());
  EXPECT_EQ(corpus.CountDocuments(0).documents, 4);
  EXPECT_EQ(corpus.CountDocuments(4).documents, 1);
  EXPECT_EQ(corpus.CountDocuments(9).documents, 1);
}

TEST(Corpus, CountsDocumentsOfRows) {
  const Folder folder;
  const std::vector<std::int32_t> tokens = {1, 2, 3, 4, 5, 6}, ids = {0, 0, 7, 1, 2, 3};
  const auto write = [&](const char* name, const char* tensor,
                         const std::vector<std::int32_t>& values) {
    std::vector<checkpoint::Tensor> tensors;
    const auto add = [&](const char* key, const std::vector<std::int32_t>& of_rows) {
      tensors.push_back({.name = key,
                         .dtype = "I32",
                         .shape = {2, 3},
                         .bytes = std::as_bytes(std::span(of_rows))});
    };
    add("tokens", tokens);
    add("targets", tokens);
    add(tensor, values);
    folder.Write(name, checkpoint::FormatSafetensors(tensors));
  };
  write("d/a.safetensors", "document", ids);
  const Corpus corpus = folder.Open("d", DataFormat::kSafetensors).value();
  EXPECT_TRUE(corpus.says_documents());
  EXPECT_TRUE(corpus.CheckDocuments().ok());
  EXPECT_EQ(corpus.CountDocuments(-1).documents, 5);
  write("d/b.safetensors", "other", ids);
  EXPECT_THAT(RuleOf(folder.Open("d", DataFormat::kSafetensors).status()),
              HasSubstr("does not say where documents begin"));
}

TEST(Corpus, DirectoriesAndPatternsAreReadInOrderOfNames) {
  const Folder folder;
  folder.Write("d/b.bin", Stream<std::uint16_t>({3, 4}));
  folder.Write("d/a.bin", Stream<std::uint16_t>({1, 2}));
  folder.Write("d/.hidden.bin", "x");
  folder.Write("d/meta.pkl", "x");
  folder.Write("d/below/c.bin", Stream<std::uint16_t>({5}));
  EXPECT_THAT(Names(folder.Open("d", DataFormat::kUint16)), ElementsAre("a.bin", "b.bin"));
  EXPECT_THAT(Names(folder.Open("d/*.bin", DataFormat::kUint16)), ElementsAre("a.bin", "b.bin"));
  EXPECT_THAT(Names(folder.Open("d/[b-z].bin", DataFormat::kUint16)), ElementsAre("b.bin"));
  EXPECT_THAT(Names(folder.Open("*/below/?.bin", DataFormat::kUint16)), ElementsAre("c.bin"));
  EXPECT_THAT(Names(folder.Open("d", DataFormat::kBytes)),
              ElementsAre("a.bin", "b.bin", "meta.pkl"));
}

TEST(Corpus, APathThatExistsIsNoPattern) {
  const Folder folder;
  folder.Write("a[1].bin", "one");
  folder.Write("a1.bin", "other");
  EXPECT_THAT(Names(folder.Open("a[1].bin", DataFormat::kBytes)), ElementsAre("a[1].bin"));
}

TEST(Corpus, RefusesPathsThatNameNothing) {
  const Folder folder;
  fs::create_directory(folder.path() / "d");
  EXPECT_EQ(RuleOf(folder.Open("d", DataFormat::kUint16).status()),
            "is a directory without .bin files");
  EXPECT_EQ(RuleOf(folder.Open("d/*.bin", DataFormat::kUint16).status()),
            "is a pattern that matches no file");
  EXPECT_EQ(RuleOf(folder.Open("absent.bin", DataFormat::kUint16).status()), "must exist");
  EXPECT_THAT(RuleOf(folder.Open("../*", DataFormat::kUint16).status()),
              HasSubstr("must lie under the worker's data root"));
}

TEST(Corpus, PatternsDoNotLeadOutOfTheRoot) {
  const Folder folder, outside;
  outside.Write("a.bin", "secret");
  fs::create_directory_symlink(outside.path(), folder.path() / "link");
  for (const char* path : {"link/*.bin", "link", "link/a.bin"}) {
    EXPECT_THAT(RuleOf(folder.Open(path, DataFormat::kBytes).status()),
                HasSubstr("must lie under the worker's data root"))
        << path;
  }
  EXPECT_THAT(folder.Open("link/*", DataFormat::kBytes).status().ToString(),
              Not(HasSubstr("a.bin")));
}

// A stream has the same windows, however it is cut into files.
RC_GTEST_PROP(Corpus, CuttingAStreamIntoFilesDoesNotChangeItsWindows, ()) {
  const Folder folder;
  const int context = *rc::gen::inRange(1, 9);
  std::vector<std::int64_t> tokens(*rc::gen::inRange(context + 1, 60));
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int64_t>(i);
  std::size_t begin = 0;
  for (int shard = 100; begin < tokens.size(); ++shard) {
    const auto count = std::min<std::size_t>(*rc::gen::inRange(1, 12), tokens.size() - begin);
    const std::vector<std::int64_t> part(tokens.begin() + begin, tokens.begin() + begin + count);
    folder.Write("d/" + std::to_string(shard) + ".bin",
                 LlmcShard(20240520, 1, static_cast<int>(count), Stream<std::uint16_t>(part)));
    begin += count;
  }
  const Corpus corpus = *folder.Open("d", DataFormat::kLlmc);
  RC_ASSERT(corpus.num_tokens() == std::ssize(tokens));
  RC_ASSERT(corpus.NumWindows(context) == (std::ssize(tokens) - 1) / context);
  for (std::int64_t window = 0; window < corpus.NumWindows(context); ++window) {
    const std::vector<std::int32_t> read = Tokens(corpus, window, context);
    for (int t = 0; t < context; ++t) {
      RC_ASSERT(read[t] == window * context + t);
      RC_ASSERT(read[context + t] == window * context + t + 1);
    }
  }
}

std::string Rows(const std::vector<std::int32_t>& values, std::int64_t length) {
  const auto bytes = std::as_bytes(std::span(values));
  const std::vector<std::int64_t> shape = {std::ssize(values) / length, length};
  return checkpoint::FormatSafetensors(
      {{.name = "tokens", .dtype = "I32", .shape = shape, .bytes = bytes},
       {.name = "targets", .dtype = "I32", .shape = shape, .bytes = bytes}});
}

TEST(Corpus, RowsOfSeveralFilesFollowOneAnother) {
  const Folder folder;
  folder.Write("a.safetensors", Rows({1, 2, 3, 4}, 2));
  folder.Write("b.safetensors", Rows({5, 6}, 2));
  const Corpus corpus = *folder.Open("*.safetensors", DataFormat::kSafetensors);
  EXPECT_EQ(corpus.NumWindows(2), 3);
  EXPECT_THAT(Tokens(corpus, 1, 2), ElementsAre(3, 4, 3, 4));
  EXPECT_THAT(Tokens(corpus, 2, 2), ElementsAre(5, 6, 5, 6));
  EXPECT_EQ(corpus.NumWindows(3), 0);
  EXPECT_EQ(RuleOf(corpus.CheckWindows(3, 1)), "has rows of 2 tokens; model.context is 3");
}

TEST(Corpus, OneNameOfAMegatronPairIsEnough) {
  const Folder folder;
  const std::string index =
      MegatronIndex{.lengths = {2, 1}, .pointers = {0, 4}, .documents = {0, 1, 2}}.ToBytes();
  for (const char* prefix : {"m/a_document", "m/b_document"}) {
    folder.Write(std::string(prefix) + ".idx", index);
    folder.Write(std::string(prefix) + ".bin", Stream<std::uint16_t>({7, 8, 9}));
  }
  for (const char* path : {"m/a_document", "m/a_document.bin", "m/a_document.idx", "m/a*"}) {
    const auto corpus = folder.Open(path, DataFormat::kMegatron);
    EXPECT_THAT(Names(corpus), ElementsAre("a_document.bin")) << path;
    EXPECT_EQ(corpus->num_documents(), 2);
  }
  const Corpus both = *folder.Open("m", DataFormat::kMegatron);
  EXPECT_EQ(both.num_tokens(), 6);
  EXPECT_EQ(both.num_documents(), 4);
  EXPECT_EQ(both.LargestId(), 9);
  EXPECT_THAT(Tokens(both, 0, 4), ElementsAre(7, 8, 9, 7, 8, 9, 7, 8));
  fs::remove(folder.path() / "m/b_document.idx");
  EXPECT_EQ(RuleOf(folder.Open("m", DataFormat::kMegatron).status()), "must exist");
}

TEST(Corpus, RefusesFilesOfDifferentKinds) {
  const Folder folder;
  folder.Write("d/a.bin", LlmcShard(20240520, 1, 1, Stream<std::uint16_t>({1})));
  folder.Write("d/b.bin", LlmcShard(20240801, 7, 1, Stream<std::uint32_t>({1})));
  EXPECT_EQ(RuleOf(folder.Open("d", DataFormat::kLlmc).status()),
            "holds uint32 tokens; " + (folder.path() / "d/a.bin").string() +
                " of the same corpus holds uint16");
  folder.Write("r/a.safetensors", Rows({1, 2, 3, 4}, 2));
  folder.Write("r/b.safetensors", Rows({1, 2, 3, 4}, 4));
  EXPECT_THAT(RuleOf(folder.Open("r", DataFormat::kSafetensors).status()),
              HasSubstr("has rows of 4 tokens"));
}

TEST(Corpus, NamesTheFileThatIsWrong) {
  const Folder folder;
  folder.Write("d/a.bin", Stream<std::uint16_t>({1, 2}));
  folder.Write("d/b.bin", Stream<std::uint16_t>({3, 500}));
  const Corpus corpus = *folder.Open("d", DataFormat::kUint16);
  EXPECT_TRUE(corpus.CheckVocab(501).ok());
  const std::vector<FieldError> errors = FieldErrorsOf(corpus.CheckVocab(500));
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors[0].value, (folder.path() / "d/b.bin").string());
  EXPECT_EQ(errors[0].rule, "has token 500 at position 1; ids must be 0 to 499 (model.vocab - 1)");
  folder.Write("d/c.bin", "abc");
  EXPECT_EQ(FieldErrorsOf(folder.Open("d", DataFormat::kUint16).status()).at(0).value,
            (folder.path() / "d/c.bin").string());
}

TEST(Corpus, RefusesFewerWindowsThanAreNeeded) {
  const Folder folder;
  folder.Write("t", "abcdefg");
  const Corpus corpus = *folder.Open("t", DataFormat::kBytes);
  EXPECT_TRUE(corpus.CheckWindows(2, 3).ok());
  EXPECT_EQ(RuleOf(corpus.CheckWindows(2, 4)), "holds 3 windows of 2 tokens; one step needs 4");
  EXPECT_TRUE(corpus.CheckWindows(6, 1).ok());
  EXPECT_EQ(RuleOf(corpus.CheckWindows(7, 1)),
            "holds 7 tokens; one window needs model.context + 1 = 8");
}

}  // namespace
}  // namespace takt::data
