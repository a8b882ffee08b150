// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <map>

#include "cli/testing/fake_coordinator.h"
#include "cli/testing/test_checkpoint.h"
#include "cli/testing/test_directory.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"

namespace takt::cli {
namespace {

namespace fs = std::filesystem;
using checkpoint::FloatFormat;
using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class CheckpointTest : public testing::Test {
 protected:
  std::string Save(std::int64_t step, const std::string& model = "gpt2-tiny") {
    return WriteCheckpoint(root(), step, GoldenModel(model));
  }
  std::string root() const { return directory_.Path("checkpoints"); }
  std::string out() const { return directory_.Path("out"); }

  // Changes one byte in the middle of a file.
  static void Damage(const std::string& path) {
    std::string text = ReadFile(path);
    text[text.size() / 2] ^= 1;
    std::ofstream(path, std::ios::binary) << text;
  }

  std::string Source(const std::string& name, FloatFormat format, int shards) {
    const std::string folder = directory_.Path("source");
    WriteModelFolder(folder, GoldenModel(name), format, shards);
    return folder;
  }

  const TestDirectory directory_;
};

TEST_F(CheckpointTest, ListsNewestFirst) {
  Save(5);
  Save(10);
  fs::create_directory(root() + "/step-00000015.partial-job-1");
  fs::create_directory(root() + "/step-00000010.replaced-1");
  fs::create_directory(root() + "/something-else");
  fs::create_symlink("step-00000010", root() + "/latest");
  const Outcome outcome = RunTakt({"-o", "json", "checkpoint", "list", root()});
  ASSERT_EQ(outcome.code, ExitCode::kDone) << outcome.err;
  std::vector<std::string> lines;
  const json listed = json::parse(outcome.out);
  for (const json& entry : listed["checkpoints"]) {
    lines.push_back(absl::StrCat(entry["step"].get<int>(), " ", entry["state"].get<std::string>(),
                                 entry["latest"].get<bool>() ? " latest" : ""));
    EXPECT_THAT(entry["time"].get<std::string>(), testing::StartsWith("20"));
  }
  EXPECT_THAT(lines, ElementsAre("15 partial", "10 complete latest", "10 replaced", "5 complete"));
  EXPECT_THAT(RunTakt({"checkpoint", "list", root()}).out,
              AllOf(HasSubstr("STEP"), HasSubstr("step-00000010  (latest)")));
}

TEST_F(CheckpointTest, ListSaysWhyOneIsDamaged) {
  fs::resize_file(Save(5) + "/model-00001-of-00006.safetensors", 10);
  const Outcome outcome = RunTakt({"checkpoint", "list", root()});
  EXPECT_EQ(outcome.code, ExitCode::kDone);
  EXPECT_THAT(outcome.out, HasSubstr("damaged"));
  EXPECT_THAT(outcome.err, HasSubstr("model-00001-of-00006.safetensors has 10 bytes"));
}

TEST_F(CheckpointTest, VerifyReadsEveryFile) {
  Save(5);
  const std::string newer = Save(10);
  EXPECT_EQ(RunTakt({"checkpoint", "verify", root()}).code, ExitCode::kDone);
  Damage(newer + "/model-00002-of-00006.safetensors");
  Damage(newer + "/config.json");
  EXPECT_EQ(RunTakt({"checkpoint", "verify", root(), "--step", "5"}).code, ExitCode::kDone);
  const Outcome text = RunTakt({"checkpoint", "verify", root()});
  EXPECT_EQ(text.code, ExitCode::kFailed);
  EXPECT_THAT(text.out,
              AllOf(HasSubstr("step-00000010: damaged"), HasSubstr("step-00000005: verified")));
  EXPECT_THAT(text.err, AllOf(HasSubstr("step-00000010/model-00002-of-00006.safetensors"),
                              HasSubstr("step-00000010/config.json is damaged")));
  const json verdict = json::parse(RunTakt({"-o", "json", "checkpoint", "verify", root()}).out);
  EXPECT_EQ(verdict["ok"], false);
  EXPECT_EQ(verdict["checkpoints"][0]["problems"].size(), 2U);
  EXPECT_EQ(verdict["checkpoints"][1]["ok"], true);
}

TEST_F(CheckpointTest, WhatIsNotThereExitsWith4) {
  EXPECT_EQ(RunTakt({"checkpoint", "list", root()}).code, ExitCode::kNotFound);
  EXPECT_EQ(RunTakt({"checkpoint", "verify", root()}).code, ExitCode::kNotFound);
  EXPECT_EQ(RunTakt({"checkpoint", "export", root(), out()}).code, ExitCode::kNotFound);
  Save(5);
  const Outcome outcome = RunTakt({"checkpoint", "verify", root(), "--step", "6"});
  EXPECT_EQ(outcome.code, ExitCode::kNotFound);
  EXPECT_THAT(outcome.err, HasSubstr("has no checkpoint of step 6"));
  EXPECT_EQ(RunTakt({"checkpoint", "export", root(), out(), "--step", "6"}).code,
            ExitCode::kNotFound);
  EXPECT_EQ(RunTakt({"checkpoint", "verify", root(), "--step", "0"}).code, ExitCode::kInvalidInput);
}

TEST_F(CheckpointTest, AnythingElseThanADirectoryOfCheckpointsIsNamed) {
  const std::string step = Save(5);
  fs::create_symlink("step-00000005", root() + "/latest");
  for (const char* const command : {"list", "verify"}) {
    for (const std::string& path : {step, root() + "/latest", root() + "/latest/"}) {
      const Outcome one = RunTakt({"checkpoint", command, path});
      EXPECT_EQ(one.code, ExitCode::kInvalidInput) << path;
      EXPECT_THAT(one.err, AllOf(HasSubstr("DIR is " + path + ": is one checkpoint"),
                                 HasSubstr("in: " + fs::canonical(root()).string())));
    }
    const Outcome model = RunTakt({"checkpoint", command, GoldenModel("gpt2-tiny")});
    EXPECT_EQ(model.code, ExitCode::kInvalidInput);
    EXPECT_THAT(model.err, HasSubstr("is the folder of one model"));
    const Outcome file = RunTakt({"checkpoint", command, step + "/manifest.json"});
    EXPECT_EQ(file.code, ExitCode::kInvalidInput);
    EXPECT_THAT(file.err, HasSubstr("manifest.json: must be a directory; name the directory"));
    const Outcome nothing = RunTakt({"checkpoint", command, out()});
    EXPECT_EQ(nothing.code, ExitCode::kNotFound);
    EXPECT_THAT(nothing.err, HasSubstr("out: there is no such directory; name the directory"));
  }
}

TEST_F(CheckpointTest, ADirectoryThatHoldsNothingYetIsAnEmptyList) {
  fs::create_directory(root());
  EXPECT_EQ(RunTakt({"checkpoint", "list", root()}).code, ExitCode::kDone);
}

// A header that no longer parses is damage, too, and the hash says so.
TEST_F(CheckpointTest, ADamagedHeaderIsDamage) {
  const auto spoil = [](const std::string& path, std::size_t place) {
    std::string text = ReadFile(path);
    text[place] ^= 0x40;
    std::ofstream(path, std::ios::binary) << text;
  };
  for (const bool length : {true, false}) {
    const std::string file = Save(6) + "/model-00002-of-00006.safetensors";
    spoil(file, length ? 6 : ReadFile(file).find("F32"));
    const Outcome exported = RunTakt({"checkpoint", "export", root(), out(), "--step", "6"});
    EXPECT_EQ(exported.code, ExitCode::kFailed);
    EXPECT_THAT(exported.err,
                AllOf(HasSubstr("model-00002-of-00006.safetensors is damaged: its XXH3-128 is"),
                      HasSubstr("restore the file, or name another step with --step")));
    const Outcome verified = RunTakt({"checkpoint", "verify", root()});
    EXPECT_EQ(verified.code, ExitCode::kFailed);
    EXPECT_THAT(verified.err,
                HasSubstr("model-00002-of-00006.safetensors is damaged: its XXH3-128 is"));
    EXPECT_FALSE(fs::exists(out()));
  }
}

TEST_F(CheckpointTest, WhatWentInComesOutBitForBit) {
  for (const char* name : {"gpt2-tiny", "llama-tiny", "qwen2-tiny", "qwen3-tiny", "mistral-tiny",
                           "mixtral-tiny", "qwen3moe-unnormed"}) {
    for (const FloatFormat format : {FloatFormat::kF32, FloatFormat::kBf16, FloatFormat::kF16}) {
      for (const int shards : {1, 3}) {
        SCOPED_TRACE(
            absl::StrCat(name, " ", std::string(checkpoint::DtypeOf(format)), " ", shards));
        const std::string source = Source(name, format, shards);
        WriteCheckpoint(root(), 1, source);
        const Outcome outcome = RunTakt({"checkpoint", "export", root(), out(), "--max-shard-size",
                                         shards == 1 ? "1GB" : "20kb"});
        ASSERT_EQ(outcome.code, ExitCode::kDone) << outcome.err;
        ExpectSameTensors(source, out());
        EXPECT_EQ(fs::exists(out() + "/model.safetensors"), shards == 1);
        EXPECT_EQ(fs::exists(out() + "/model.safetensors.index.json"), shards != 1);
        const json before = json::parse(ReadFile(source + "/config.json"));
        json after = json::parse(ReadFile(out() + "/config.json"));
        EXPECT_EQ(after["torch_dtype"], checkpoint::TorchDtypeOf(format));
        after["torch_dtype"] = before["torch_dtype"];
        for (const auto& [key, value] : before.items()) EXPECT_EQ(after[key], value) << key;
        EXPECT_EQ(json::parse(ReadFile(out() + "/generation_config.json"))["eos_token_id"], 0);
        for (const std::string& made : {source, root(), out()}) fs::remove_all(made);
      }
    }
  }
}

TEST_F(CheckpointTest, ExportDividesBySizeInTheModelsOrder) {
  Save(1);
  const Outcome outcome = RunTakt({"-o", "json", "checkpoint", "export", root(), out(),
                                   "--max-shard-size", "100kb", "--dtype", "f32"});
  ASSERT_EQ(outcome.code, ExitCode::kDone) << outcome.err;
  const json index = json::parse(ReadFile(out() + "/model.safetensors.index.json"));
  std::map<std::string, std::int64_t> bytes;
  std::int64_t total = 0;
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    const std::string text = ReadFile(absl::StrCat(out(), "/", file.get<std::string>()));
    const auto view =
        checkpoint::SafetensorsView::Parse(std::as_bytes(std::span(text)), "out").value();
    EXPECT_EQ(view.metadata().at("format"), "pt");
    ASSERT_NE(view.Find(tensor), nullptr) << tensor;
    bytes[file] += static_cast<std::int64_t>(view.Find(tensor)->bytes.size());
    total += static_cast<std::int64_t>(view.Find(tensor)->bytes.size());
  }
  EXPECT_EQ(index["metadata"]["total_size"], total);
  EXPECT_GT(bytes.size(), 3U);
  for (const auto& [file, size] : bytes) EXPECT_LE(size, 100'000) << file;
  EXPECT_EQ(index["weight_map"]["transformer.wte.weight"], bytes.begin()->first);
  EXPECT_EQ(index["weight_map"]["transformer.ln_f.bias"], bytes.rbegin()->first);
  EXPECT_EQ(json::parse(outcome.out)["files"].size(), bytes.size() + 3);
}

TEST_F(CheckpointTest, EmulatedLayersHaveNothingToExport) {
  fs::create_directories(root() + "/step-00000003");
  std::ofstream(root() + "/step-00000003/manifest.json")
      << checkpoint::FormatManifest({.job = "job", .step = StepId(3)}).value();
  EXPECT_EQ(RunTakt({"checkpoint", "verify", root()}).code, ExitCode::kDone);
  const Outcome outcome = RunTakt({"checkpoint", "export", root(), out()});
  EXPECT_EQ(outcome.code, ExitCode::kFailed);
  EXPECT_THAT(outcome.err, HasSubstr("the layers of its job are emulated"));
}

// No family of transformers chooses experts by a bias.
TEST_F(CheckpointTest, ExpertsWithABiasHaveNoFormatToExportTo) {
  json config = json::parse(ReadFile(GoldenModel("mixtral-tiny") + "/config.json"));
  config["model_type"] = "takt_mixtral";
  const std::string text = config.dump();
  const std::string step = root() + "/step-00000003";
  fs::create_directories(step);
  std::ofstream(step + "/config.json") << text;
  checkpoint::Manifest manifest{.job = "job", .step = StepId(3)};
  manifest.files.push_back({.name = "config.json",
                            .bytes = static_cast<std::int64_t>(text.size()),
                            .xxh3_128 = checkpoint::HashOf(std::as_bytes(std::span(text)))});
  std::ofstream(step + "/manifest.json") << checkpoint::FormatManifest(manifest).value();
  const Outcome outcome = RunTakt({"checkpoint", "export", root(), out()});
  EXPECT_EQ(outcome.code, ExitCode::kFailed);
  EXPECT_THAT(outcome.err, HasSubstr("experts with sigmoid scores"));
}

TEST_F(CheckpointTest, ExportLeavesNothingBehindWhereItFails) {
  Damage(Save(1) + "/model-00002-of-00006.safetensors");
  const Outcome damaged = RunTakt({"checkpoint", "export", root(), out()});
  EXPECT_EQ(damaged.code, ExitCode::kFailed);
  EXPECT_THAT(damaged.err, HasSubstr("model-00002-of-00006.safetensors"));

  Save(2);
  fs::create_directory(out());
  std::ofstream(out() + "/mine") << "text";
  const Outcome in_the_way = RunTakt({"checkpoint", "export", root(), out()});
  EXPECT_EQ(in_the_way.code, ExitCode::kInvalidInput);
  EXPECT_THAT(in_the_way.err, HasSubstr("is there already and is no empty folder"));
  EXPECT_EQ(ReadFile(out() + "/mine"), "text");

  fs::remove(out() + "/mine");  // an empty folder is accepted
  EXPECT_EQ(RunTakt({"checkpoint", "export", root(), out() + "/"}).code, ExitCode::kDone);
  EXPECT_TRUE(fs::exists(out() + "/config.json"));
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory_.path())) {
    names.push_back(entry.path().filename().string());
  }
  EXPECT_THAT(names, testing::UnorderedElementsAre("checkpoints", "out"));
}

}  // namespace
}  // namespace takt::cli
