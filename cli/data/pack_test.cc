// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/testing/fake_coordinator.h"
#include "cli/testing/test_directory.h"
#include "common/checkpoint/safetensors.h"
#include "common/data/document_line.h"
#include "common/tokenizer/tokenizer_folder.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"

namespace takt::cli {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using Numbers = std::vector<std::int32_t>;

Numbers Read(const std::string& path, const char* name) {
  std::ifstream in(path, std::ios::binary);
  const std::string file{std::istreambuf_iterator<char>(in), {}};
  const auto view = checkpoint::SafetensorsView::Parse(std::as_bytes(std::span(file)), path);
  EXPECT_TRUE(view.ok()) << view.status();
  const checkpoint::Tensor* tensor = view.ok() ? view->Find(name) : nullptr;
  if (tensor == nullptr) return {};
  Numbers numbers(tensor->bytes.size() / sizeof(std::int32_t));
  std::memcpy(numbers.data(), tensor->bytes.data(), tensor->bytes.size());
  return numbers;
}

std::string Out(const TestDirectory& directory) { return directory.Path("rows.safetensors"); }

TEST(DataPack, MakesRowsThatDataInfoReads) {
  const TestDirectory directory;
  const std::string in = directory.Write("a.jsonl",
                                         "{\"input_ids\": [1, 2, 3]}\n\n"
                                         "{\"prompt\": [4], \"completion\": [5]}\r\n"
                                         "{\"input_ids\": [6]}");
  const std::string out = Out(directory);
  const Outcome packed =
      RunTakt({"-o", "json", "data", "pack", in, "--out", out, "--context", "4"});
  ASSERT_EQ(packed.code, ExitCode::kDone) << packed.err;
  const json said = json::parse(packed.out);
  EXPECT_EQ(said["rows"], 2);
  EXPECT_EQ(said["documents"], 3);
  EXPECT_EQ(said["tokens"], 6);
  EXPECT_EQ(said["scored_targets"], 3);
  EXPECT_EQ(said["padding"], 2);
  EXPECT_THAT(Read(out, "tokens"), ElementsAre(1, 2, 3, 6, 4, 5, 0, 0));
  EXPECT_THAT(Read(out, "targets"), ElementsAre(2, 3, -100, -100, 5, -100, -100, -100));
  EXPECT_THAT(Read(out, "document"), ElementsAre(0, 0, 0, 1, 0, 0, 1, 1));

  const Outcome info = RunTakt({"-o", "json", "data", "info", out, "--vocab", "7"});
  EXPECT_EQ(info.code, ExitCode::kDone) << info.err;
  EXPECT_EQ(json::parse(info.out)["documents"], 3);
  EXPECT_EQ(json::parse(info.out)["padding"], 2);
  EXPECT_THAT(RunTakt({"data", "info", out}).out,
              AllOf(HasSubstr("3, 2 tokens on average"), HasSubstr("25.0%")));
}

TEST(DataPack, TextsNeedATokenizerAndEndWithItsEnd) {
  const TestDirectory directory;
  const std::string in =
      directory.Write("a.jsonl", R"({"prompt": "hello", "completion": " world"})");
  const std::string out = Out(directory);
  const Outcome without = RunTakt({"data", "pack", in, "--out", out, "--context", "64"});
  EXPECT_NE(without.code, ExitCode::kDone);
  EXPECT_THAT(without.err, HasSubstr("need --tokenizer"));
  const std::string folder = absl::StrCat(TAKT_SOURCE_DIR, "/tests/golden/tokenizer/gpt2");
  const Outcome with =
      RunTakt({"data", "pack", in, "--out", out, "--context", "64", "--tokenizer", folder});
  ASSERT_EQ(with.code, ExitCode::kDone) << with.err;
  const auto opened = tokenizer::OpenTokenizerFolder("folder", folder).value();
  const auto encoder = opened.tokenizer->NewEncoder({});
  Numbers prompt, completion;
  ASSERT_TRUE(encoder->Encode("hello", prompt).ok());
  ASSERT_TRUE(encoder->Encode(" world", completion).ok());
  completion.push_back(0);  // its eos_token
  data::TrainingDocument expected;
  expected.Append(prompt, /*scored=*/false);
  expected.Append(completion, /*scored=*/true);
  expected.targets.resize(64, -100);
  EXPECT_EQ(Read(out, "targets"), expected.targets);
}

TEST(DataPack, RefusesCutsOrSkipsWhatIsTooLong) {
  const TestDirectory directory;
  const std::string in =
      directory.Write("a.jsonl", "{\"input_ids\": [1]}\n{\"input_ids\": [2, 3, 4, 5]}\n");
  const std::string out = Out(directory);
  const std::vector<std::string> command = {"data", "pack",      in,  "--out",
                                            out,    "--context", "3", "--too-long"};
  const auto run = [&](const char* too_long) {
    std::vector<std::string> words = command;
    words.emplace_back(too_long);
    return RunTakt(words);
  };
  const Outcome refused = run("refuse");
  EXPECT_NE(refused.code, ExitCode::kDone);
  EXPECT_THAT(refused.err, HasSubstr("a.jsonl:2"));
  EXPECT_THAT(refused.err, HasSubstr("has 4 tokens, a row has 3"));
  EXPECT_EQ(run("skip").code, ExitCode::kDone);
  EXPECT_THAT(Read(out, "tokens"), ElementsAre(1, 0, 0));
  std::remove(out.c_str());
  const Outcome cut = run("cut");
  EXPECT_THAT(cut.out, HasSubstr("1, too long"));
  EXPECT_THAT(Read(out, "tokens"), ElementsAre(2, 3, 4, 1, 0, 0));
}

TEST(DataPack, NamesTheLineThatIsNoDocument) {
  const TestDirectory directory;
  const std::string in = directory.Write("a.jsonl", "{\"input_ids\": [1]}\n{\"prompt\": [2]}\n");
  const Outcome outcome = RunTakt({"data", "pack", in, "--out", Out(directory), "--context", "3"});
  EXPECT_EQ(outcome.code, ExitCode::kInvalidInput);
  EXPECT_THAT(outcome.err, HasSubstr("a.jsonl:2"));
  EXPECT_THAT(outcome.err, HasSubstr("without a `completion`"));
}

}  // namespace
}  // namespace takt::cli
