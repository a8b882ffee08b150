// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "cli/testing/fake_coordinator.h"
#include "cli/testing/test_directory.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"

namespace takt::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr char kJob[] =
    "name: j\n"
    "model: {family: gpt2, layers: 2, hidden: 8, heads: 2, context: 4, vocab: 128}\n"
    "data: {train: {path: other.txt, format: bytes}}\n"
    "batch: {global: 4, microbatch: 2}\n"
    "steps: 1\n";

TEST(DataInfo, SaysWhatAFileHolds) {
  const TestDirectory directory;
  const std::string file = directory.Write("a.txt", "hello, world");
  const Outcome outcome =
      RunTakt({"-o", "json", "data", "info", file, "--format", "bytes", "--context", "3"});
  EXPECT_EQ(outcome.code, ExitCode::kDone);
  const json info = json::parse(outcome.out);
  EXPECT_EQ(info["tokens"], 12);
  EXPECT_EQ(info["token_type"], "uint8");
  EXPECT_EQ(info["largest_id"], 'w');
  EXPECT_EQ(info["windows"], 3);
  EXPECT_EQ(info["documents"], nullptr);
  EXPECT_EQ(info["fits"], true);
  EXPECT_EQ(info["files"][0]["bytes"], 12);
}

TEST(DataInfo, CountsDocumentsThatATokenEnds) {
  const TestDirectory directory;
  const std::string file = directory.Write("a.txt", "one two  three");  // one of them is empty
  const Outcome outcome =
      RunTakt({"data", "info", file, "--format", "bytes", "--document-end", "32"});
  EXPECT_EQ(outcome.code, ExitCode::kDone);
  EXPECT_THAT(outcome.out, HasSubstr("4, 3 tokens on average"));
  const std::string ended = directory.Write("b.txt", "one two ");
  const Outcome counted =
      RunTakt({"-o", "json", "data", "info", ended, "--format", "bytes", "--document-end", "32"});
  EXPECT_EQ(json::parse(counted.out)["documents"], 2);
}

TEST(DataInfo, WithoutAContextThereAreNoWindows) {
  const TestDirectory directory;
  const std::string file = directory.Write("a.txt", "hello");
  const json info =
      json::parse(RunTakt({"-o", "json", "data", "info", file, "--format", "bytes"}).out);
  EXPECT_EQ(info["windows"], nullptr);
  EXPECT_EQ(info["fits"], nullptr);
}

TEST(DataInfo, JudgesAgainstAJob) {
  const TestDirectory directory;
  const std::string job = directory.Write("job.yaml", kJob);
  const std::string good = directory.Write("good.txt", "12345678901234567");
  EXPECT_EQ(RunTakt({"data", "info", good, job, "--format", "bytes"}).code, ExitCode::kDone);

  const std::string bad = directory.Write("bad.txt", "123456789012345\xff");
  const Outcome text = RunTakt({"data", "info", bad, job, "--format", "bytes"});
  EXPECT_EQ(text.code, ExitCode::kFailed);
  EXPECT_THAT(text.out, HasSubstr("fits        no"));
  EXPECT_THAT(text.err, HasSubstr("holds 3 windows of 4 tokens; one step needs 4"));
  EXPECT_THAT(text.err, HasSubstr("has token 255 at position 15; ids must be 0 to 127"));

  const Outcome outcome = RunTakt({"-o", "json", "data", "info", bad, job, "--format", "bytes"});
  EXPECT_EQ(outcome.code, ExitCode::kFailed);
  const json info = json::parse(outcome.out);
  EXPECT_EQ(info["fits"], false);
  EXPECT_EQ(info["problems"].size(), 2U);
}

TEST(DataInfo, ListsTheFilesOfAPattern) {
  const TestDirectory directory;
  (void)directory.Write("b.bin", "5678");
  (void)directory.Write("a.bin", "12");
  const Outcome outcome =
      RunTakt({"-o", "json", "data", "info", directory.Path("*.bin"), "--format", "uint16"});
  const json info = json::parse(outcome.out);
  EXPECT_EQ(info["tokens"], 3);
  ASSERT_EQ(info["files"].size(), 2U);
  EXPECT_THAT(info["files"][0]["path"].get<std::string>(), testing::EndsWith("a.bin"));
}

TEST(DataInfo, WhatCannotBeReadExitsWith2) {
  const TestDirectory directory;
  const std::string odd = directory.Write("odd.bin", "123");
  const Outcome outcome = RunTakt({"data", "info", odd, "--format", "uint16"});
  EXPECT_EQ(outcome.code, ExitCode::kInvalidInput);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("FILE is " + odd + ": has 3 bytes"));
  EXPECT_EQ(RunTakt({"data", "info", directory.Path("absent"), "--format", "bytes"}).code,
            ExitCode::kInvalidInput);
  EXPECT_EQ(RunTakt({"data", "info", odd, "--format", "pickle"}).code, ExitCode::kInvalidInput);
}

TEST(DataInfo, TakesTheFormatThatAFileStates) {
  const TestDirectory directory;
  std::string shard(1024 + 2, '\0');
  const std::int32_t header[] = {20240520, 1, 1};
  std::memcpy(shard.data(), header, sizeof(header));
  const Outcome stated =
      RunTakt({"-o", "json", "data", "info", directory.Write("shard.bin", shard)});
  EXPECT_EQ(stated.code, ExitCode::kDone);
  EXPECT_EQ(json::parse(stated.out)["format"], "llmc");
  // A stream states no format, so none is guessed.
  const Outcome stream = RunTakt({"data", "info", directory.Write("stream.bin", "12345678")});
  EXPECT_EQ(stream.code, ExitCode::kInvalidInput);
  EXPECT_THAT(stream.err, HasSubstr("--format: is missing"));
}

TEST(DataInfo, EmulatedJobsReadNothing) {
  const TestDirectory directory;
  const std::string job = directory.Write(
      "job.yaml",
      "name: j\nmodel: {family: emulated, layers: 2, forward_ms: 1, activation_bytes: 8}\nbatch: "
      "{global: 1, microbatch: 1}\nsteps: 1\n");
  const std::string file = directory.Write("a.txt", "hello");
  const Outcome outcome = RunTakt({"data", "info", file, job, "--format", "bytes"});
  EXPECT_EQ(outcome.code, ExitCode::kInvalidInput);
  EXPECT_THAT(outcome.err, HasSubstr("read no data"));
}

}  // namespace
}  // namespace takt::cli
