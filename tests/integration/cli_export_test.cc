// SPDX-License-Identifier: Apache-2.0
// A Hugging Face folder through a job that changes nothing and out again: the same bytes.
#include <ostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/testing/test_checkpoint.h"
#include "tests/integration/command.h"

namespace takt::integration {
namespace {

using checkpoint::FloatFormat;

struct Source {
  const char* model;
  FloatFormat format;
  int shards;
};

std::string NameOf(const Source& source) {
  std::string name =
      absl::StrCat(source.model, "_", std::string(DtypeOf(source.format)), "_", source.shards);
  std::ranges::replace(name, '-', '_');
  return name;
}

std::ostream& operator<<(std::ostream& out, const Source& source) { return out << NameOf(source); }

class ExportTest : public testing::TestWithParam<Source> {};

TEST_P(ExportTest, WhatWentInUnchangedComesOutBitForBit) {
  const Source& source = GetParam();
  const TestDirectory directory;
  const std::string golden = cli::GoldenModel(source.model);
  cli::WriteModelFolder(directory.Path("model"), golden, source.format, source.shards);
  const std::string job =
      directory.Write("job.yaml", absl::StrCat("name: unchanged\n"
                                               "model: {init_from: model, context: 16}\n"
                                               "data: {train: {path: ",
                                               golden,
                                               "/tokens.bin, format: uint16}}\n"
                                               "batch: {global: 4, microbatch: 2}\n"
                                               "optimizer: {adamw: {learning_rate: 0}}\n"
                                               "steps: 2\n"
                                               "checkpoint: {directory: checkpoints}\n"
                                               "parallelism: {pipeline: 2, data: 1}\n"));
  Command run("takt", {"local", "run", job, "--workers", "2", "--state", directory.Path("state")});
  ASSERT_EQ(run.Wait(), "exit status 0") << run.err();
  for (const char* command : {"list", "verify"}) {
    Command look("takt", {"checkpoint", command, directory.Path("checkpoints")});
    EXPECT_EQ(look.Wait(), "exit status 0") << look.err();
    EXPECT_NE(look.out().find("step-00000002"), std::string::npos) << look.out();
  }
  Command exporting("takt",
                    {"checkpoint", "export", directory.Path("checkpoints"), directory.Path("out"),
                     "--max-shard-size", source.shards == 1 ? "1GB" : "50kb"});
  ASSERT_EQ(exporting.Wait(), "exit status 0") << exporting.err();
  cli::ExpectSameTensors(directory.Path("model"), directory.Path("out"));
  EXPECT_EQ(std::filesystem::exists(directory.Path("out/model.safetensors")), source.shards == 1);
}

constexpr Source kSources[] = {
    {"gpt2-tiny", FloatFormat::kF32, 1},    {"gpt2-tiny", FloatFormat::kBf16, 3},
    {"llama-tiny", FloatFormat::kF32, 3},   {"llama-tiny", FloatFormat::kBf16, 1},
    {"qwen2-tiny", FloatFormat::kF16, 2},   {"qwen2-tiny", FloatFormat::kBf16, 1},
    {"qwen3-tiny", FloatFormat::kBf16, 1},  {"mistral-tiny", FloatFormat::kF32, 2},
    {"mixtral-tiny", FloatFormat::kF32, 2}, {"qwen3moe-unnormed", FloatFormat::kBf16, 1}};

INSTANTIATE_TEST_SUITE_P(All, ExportTest, testing::ValuesIn(kSources),
                         [](const auto& info) { return NameOf(info.param); });

}  // namespace
}  // namespace takt::integration
