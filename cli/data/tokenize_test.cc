// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <sys/resource.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "cli/testing/fake_coordinator.h"
#include "cli/testing/test_directory.h"
#include "common/data/token_origin.h"
#include "common/tokenizer/tokenizer_folder.h"
#include "common/tokenizer/utf8.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"

namespace takt::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using Ids = std::vector<std::int32_t>;

// Returns the golden tokenizer that the tests use. Its eos_token is id 0.
std::string Folder() { return absl::StrCat(TAKT_SOURCE_DIR, "/tests/golden/tokenizer/gpt2"); }
constexpr std::int32_t kEnd = 0;

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

Ids ReadIds(const std::string& path) {
  const std::string bytes = ReadFile(path);
  Ids ids;
  for (std::size_t i = 0; i + 1 < bytes.size(); i += 2) {
    ids.push_back(static_cast<unsigned char>(bytes[i]) | static_cast<unsigned char>(bytes[i + 1])
                                                             << 8);
  }
  return ids;
}

// The ids of documents, with the end after each.
Ids Expected(const std::vector<std::string>& documents) {
  const auto folder = tokenizer::OpenTokenizerFolder("folder", Folder()).value();
  const auto encoder = folder.tokenizer->NewEncoder({});
  Ids ids;
  for (const std::string& document : documents) {
    EXPECT_TRUE(encoder->Encode(document, ids).ok());
    ids.push_back(kEnd);
  }
  return ids;
}

Outcome Tokenize(const std::string& in, const std::string& out,
                 const std::vector<std::string>& more = {}) {
  std::vector<std::string> line = {"-o",    "json", "data",        "tokenize", in,
                                   "--out", out,    "--tokenizer", Folder()};
  line.insert(line.end(), more.begin(), more.end());
  return RunTakt(line);
}

TEST(DataTokenize, AFileIsADocument) {
  const TestDirectory directory;
  const std::string out = directory.Path("train.bin");
  const Outcome outcome = Tokenize(directory.Write("a.txt", "Hello, the\nword."), out);
  ASSERT_EQ(outcome.code, ExitCode::kDone) << outcome.err;
  EXPECT_EQ(ReadIds(out), Expected({"Hello, the\nword."}));
  const json result = json::parse(outcome.out);
  EXPECT_EQ(result["format"], "uint16");
  EXPECT_EQ(result["documents"], 1);
  EXPECT_EQ(result["bytes"], 16);
  EXPECT_EQ(result["end_of_document"], kEnd);
  EXPECT_EQ(result["resumed_bytes"], 0);
  const auto origin = data::ReadTokenOrigin(out).value();
  ASSERT_TRUE(origin.has_value());
  EXPECT_EQ(origin->bytes, 16);
  EXPECT_EQ(origin->tokens, result["tokens"].get<std::int64_t>());
  EXPECT_EQ(origin->tokenizer_hash.size(), 32U);
  EXPECT_EQ(outcome.err, "");
}

TEST(DataTokenize, GivesTheIdsOfTheReference) {
  const json expected = json::parse(ReadFile(Folder() + "/../expected.json"));
  const TestDirectory directory;
  std::string lines;
  Ids ids;
  for (std::size_t i = 0; i < expected["cases"].size(); ++i) {
    std::string bytes;
    ASSERT_TRUE(absl::Base64Unescape(expected["cases"][i].get<std::string>(), &bytes));
    std::string storage;
    const std::string text(tokenizer::ReplaceInvalidUtf8(bytes, storage).text);
    if (text.empty()) continue;
    json line;
    line["text"] = text;
    absl::StrAppend(&lines, line.dump(), "\n");
    const Ids own = expected["tokenizers"]["gpt2"]["plain"][i].get<Ids>();
    ids.insert(ids.end(), own.begin(), own.end());
    ids.push_back(kEnd);
  }
  const std::string out = directory.Path("out.bin");
  ASSERT_EQ(Tokenize(directory.Write("a.jsonl", lines), out).code, ExitCode::kDone);
  EXPECT_EQ(ReadIds(out), ids);
}

TEST(DataTokenize, LinesAndJsonLinesAreDocuments) {
  const TestDirectory directory;
  const std::string out = directory.Path("a.bin"), other = directory.Path("b.bin");
  const std::string lines = directory.Write("a.txt", "one\r\n\ntwo words\nlast");
  ASSERT_EQ(Tokenize(lines, out, {"--documents", "lines"}).code, ExitCode::kDone);
  EXPECT_EQ(ReadIds(out), Expected({"one", "two words", "last"}));
  const std::string objects = directory.Write(
      "a.jsonl",
      "{\"body\": \"one\"}\n\n{\"body\": \"two \\u0077ords\", \"x\": 1}\n{\"body\": \"\"}");
  ASSERT_EQ(Tokenize(objects, other, {"--field", "body"}).code, ExitCode::kDone);
  EXPECT_EQ(ReadIds(other), Expected({"one", "two words"}));
}

TEST(DataTokenize, DocumentsBeginAsTheTokenizersFolderSays) {
  const TestDirectory directory;
  const std::string in = directory.Write("a.txt", "one\n\ntwo");
  const std::string folder = absl::StrCat(TAKT_SOURCE_DIR, "/tests/golden/tokenizer/llama2");
  const auto ids = [&](const std::string& name, const std::vector<std::string>& more) {
    const std::string out = directory.Path(name);
    std::vector<std::string> line = {"-o",    "json",  "data", "tokenize",    in,    "--documents",
                                     "lines", "--out", out,    "--tokenizer", folder};
    line.insert(line.end(), more.begin(), more.end());
    const Outcome outcome = RunTakt(line);
    EXPECT_EQ(outcome.code, ExitCode::kDone) << outcome.err;
    return ReadIds(out);
  };
  const auto opened = tokenizer::OpenTokenizerFolder("folder", folder).value();
  Ids plain, whole;
  for (const char* text : {"one", "two"}) {
    Ids document;
    ASSERT_TRUE(opened.tokenizer->NewEncoder({})->Encode(text, document).ok());
    plain.insert(plain.end(), document.begin(), document.end());
    whole.push_back(1);  // <s>
    whole.insert(whole.end(), document.begin(), document.end());
    whole.push_back(2);  // </s>
  }
  EXPECT_EQ(ids("whole.bin", {}), whole);
  EXPECT_EQ(data::ReadTokenOrigin(directory.Path("whole.bin")).value()->begin_of_document, 1);
  EXPECT_EQ(data::ReadTokenOrigin(directory.Path("whole.bin")).value()->documents, 2);
  EXPECT_EQ(ids("plain.bin", {"--bos", "none", "--eod", "none"}), plain);
  EXPECT_EQ(data::ReadTokenOrigin(directory.Path("plain.bin")).value()->begin_of_document,
            std::nullopt);
}

TEST(DataTokenize, SpecialTokensInTextStayText) {
  const TestDirectory directory;
  const std::string in = directory.Write("a.txt", "a<|endoftext|>b");
  const std::string plain = directory.Path("plain.bin"), special = directory.Path("special.bin");
  ASSERT_EQ(Tokenize(in, plain, {"--eod", "none"}).code, ExitCode::kDone);
  EXPECT_THAT(ReadIds(plain), testing::Not(testing::Contains(kEnd)));
  ASSERT_EQ(Tokenize(in, special, {"--eod", "none", "--special"}).code, ExitCode::kDone);
  EXPECT_THAT(ReadIds(special), testing::ElementsAre(testing::_, kEnd, testing::_));
}

TEST(DataTokenize, CountsBytesThatAreNotUtf8) {
  const TestDirectory directory;
  const Outcome outcome = Tokenize(directory.Write("a.txt",
                                                   "a\xff"
                                                   "b\xc3"),
                                   directory.Path("a.bin"));
  ASSERT_EQ(outcome.code, ExitCode::kDone);
  EXPECT_EQ(json::parse(outcome.out)["replaced"], 2);
  EXPECT_THAT(outcome.err, HasSubstr("U+FFFD replaces bytes that are not UTF-8 in 2 places"));
  EXPECT_EQ(ReadIds(directory.Path("a.bin")), Expected({"a\xEF\xBF\xBD"
                                                        "b\xEF\xBF\xBD"}));
}

TEST(DataTokenize, WritesMegatronFilesThatInfoReads) {
  const TestDirectory directory;
  const std::string prefix = directory.Path("corpus");
  const std::string in = directory.Write("a.txt", "one\ntwo\nthree");
  ASSERT_EQ(Tokenize(in, prefix, {"--format", "megatron", "--documents", "lines"}).code,
            ExitCode::kDone);
  const Outcome outcome = RunTakt({"-o", "json", "data", "info", prefix, "--tokenizer", Folder()});
  ASSERT_EQ(outcome.code, ExitCode::kDone) << outcome.err;
  const json info = json::parse(outcome.out);
  EXPECT_EQ(info["documents"], 3);
  EXPECT_EQ(info["texts"][1]["text"], "two");
  EXPECT_EQ(info["texts"].size(), 3U);
  const Outcome text = RunTakt({"data", "info", prefix, "--tokenizer", Folder(), "--show", "1"});
  EXPECT_THAT(text.out, HasSubstr("tokens:\none\n"));
  EXPECT_THAT(text.out, testing::Not(HasSubstr("two")));
}

// Returns more than three units of lines.
std::string ManyLines() {
  std::string text;
  for (int i = 0; text.size() < 3600000; ++i) {
    absl::StrAppend(&text, "line ", i, " of the quick brown fox\n");
  }
  return text;
}

TEST(DataTokenize, TheOutputIsTheSameForAnyNumberOfThreads) {
  const TestDirectory directory;
  const std::string in = directory.Write("a.txt", ManyLines());
  const std::string one = directory.Path("1.bin"), four = directory.Path("4.bin");
  ASSERT_EQ(Tokenize(in, one, {"--documents", "lines", "--threads", "1"}).code, ExitCode::kDone);
  ASSERT_EQ(Tokenize(in, four, {"--documents", "lines", "--threads", "4"}).code, ExitCode::kDone);
  EXPECT_EQ(ReadFile(one), ReadFile(four));
}

// While it lives no file can grow larger, as on a full disk.
class FullDisk {
 public:
  explicit FullDisk(std::size_t bytes) : before_(signal(SIGXFSZ, SIG_IGN)) {
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &limit_), 0);
    rlimit low = limit_;
    low.rlim_cur = bytes;
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
  }
  ~FullDisk() {
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit_), 0);
    signal(SIGXFSZ, before_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  rlimit limit_{};
  void (*before_)(int);
};

TEST(DataTokenize, GoesOnWhereAFullDiskStoppedIt) {
  const TestDirectory directory;
  const std::string in = directory.Write("a.txt", ManyLines());
  const std::string whole = directory.Path("whole.bin"), out = directory.Path("out.bin");
  const std::vector<std::string> lines = {"--documents", "lines"};
  ASSERT_EQ(Tokenize(in, whole, lines).code, ExitCode::kDone);
  {
    const FullDisk disk(std::filesystem::file_size(whole) / 2);
    const Outcome outcome = Tokenize(in, out, lines);
    EXPECT_EQ(outcome.code, ExitCode::kInvalidInput);
    EXPECT_THAT(outcome.err, HasSubstr("cannot be written"));
  }
  EXPECT_FALSE(std::filesystem::exists(out));
  EXPECT_FALSE(std::filesystem::exists(out + ".json"));
  const Outcome outcome = Tokenize(in, out, lines);
  ASSERT_EQ(outcome.code, ExitCode::kDone) << outcome.err;
  EXPECT_GT(json::parse(outcome.out)["resumed_bytes"], 0);
  EXPECT_THAT(outcome.err, HasSubstr("went on after"));
  EXPECT_EQ(ReadFile(out), ReadFile(whole));
  EXPECT_EQ(ReadFile(out + ".json"), ReadFile(whole + ".json"));
  // Nothing hidden is left.
  for (const auto& entry : std::filesystem::directory_iterator(directory.path())) {
    EXPECT_FALSE(entry.path().filename().string().starts_with('.')) << entry.path();
  }
}

TEST(DataTokenize, AnotherJobBeginsAnew) {
  const TestDirectory directory;
  const std::string out = directory.Path("out.bin");
  const std::string bad = directory.Write("a.jsonl", ManyLines());
  EXPECT_EQ(Tokenize(bad, out).code, ExitCode::kInvalidInput);
  ASSERT_EQ(Tokenize(directory.Write("b.txt", "text"), out).code, ExitCode::kDone);
  EXPECT_EQ(ReadIds(out), Expected({"text"}));
}

TEST(DataTokenize, SaysWhichLineIsWrong) {
  const TestDirectory directory;
  const auto error = [&](const std::string& text) {
    return Tokenize(directory.Write("a.jsonl", text), directory.Path("out.bin")).err;
  };
  EXPECT_THAT(error("{\"text\": \"x\"}\n\nno json\n"),
              testing::AllOf(HasSubstr("a.jsonl:3"), HasSubstr("must be a JSON object")));
  EXPECT_THAT(error("{\"body\": \"x\"}"),
              testing::AllOf(HasSubstr("a.jsonl:1"), HasSubstr("field `text`")));
}

TEST(DataTokenize, RefusesWhatItCannotDo) {
  const TestDirectory directory;
  const std::string in = directory.Write("a.txt", "text"), out = directory.Path("out.bin");
  const auto error = [](const Outcome& outcome) {
    EXPECT_EQ(outcome.code, ExitCode::kInvalidInput);
    return outcome.err;
  };
  EXPECT_THAT(error(Tokenize(in, in)), HasSubstr("nothing is overwritten"));
  EXPECT_THAT(error(Tokenize(directory.Path("no"), out)), HasSubstr("No such file"));
  EXPECT_THAT(error(Tokenize(directory.Write("b.txt", ""), out)), HasSubstr("holds no text"));
  EXPECT_THAT(error(Tokenize(in, out, {"--eod", "<no>"})), HasSubstr("--eod"));
  EXPECT_THAT(error(Tokenize(in, out, {"--eod", "400"})), HasSubstr("size of the vocabulary"));
  EXPECT_THAT(error(Tokenize(in, directory.Path("no/out.bin"))), HasSubstr("cannot be written"));
  EXPECT_THAT(
      error(RunTakt({"data", "tokenize", in, "--out", out, "--tokenizer", directory.path()})),
      HasSubstr("neither tokenizer.json nor tokenizer.model"));
  EXPECT_FALSE(std::filesystem::exists(out));
}

}  // namespace
}  // namespace takt::cli
