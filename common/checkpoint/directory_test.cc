// SPDX-License-Identifier: Apache-2.0
#include "common/checkpoint/directory.h"

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/checkpoint/hash.h"
#include "common/checkpoint/layout.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

void Write(const fs::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary)
      .write(text.data(), static_cast<std::streamsize>(text.size()));
}

// Makes a directory with small checkpoints.
class DirectoryTest : public ::testing::Test {
 protected:
  DirectoryTest() : path_(fs::temp_directory_path() / "takt-XXXXXX") {
    std::string name = path_.string();
    path_ = mkdtemp(name.data());
  }
  ~DirectoryTest() override { fs::remove_all(path_); }

  // Writes a step of two files; the tensor "w" holds step, step + 1, ...
  std::string MakeStep(std::int64_t step) {
    const fs::path directory = path_ / StepDirectoryName(StepId(step));
    fs::create_directory(directory);
    std::vector<float> values(4);
    std::iota(values.begin(), values.end(), static_cast<float>(step));
    const std::string shard = FormatSafetensors(
        {{.name = "w", .dtype = "F32", .shape = {4}, .bytes = std::as_bytes(std::span(values))}},
        {{"format", "pt"}});
    Manifest manifest{.job = "j", .generation = Generation(1), .step = StepId(step)};
    for (const auto& [name, text] :
         {std::pair<std::string, std::string>(ModelFile(LayerId(0), 1), shard),
          std::pair<std::string, std::string>(kConfigFile, "{}\n")}) {
      Write(directory / name, text);
      manifest.files.push_back(
          {name, static_cast<std::int64_t>(text.size()), HashOf(std::as_bytes(std::span(text)))});
    }
    Write(directory / kManifestFile, *FormatManifest(manifest));
    return directory.string();
  }

  std::vector<ListedStep> List() {
    const auto steps = ListSteps(path_.string());
    EXPECT_TRUE(steps.ok()) << steps.status();
    return *steps;
  }

  // The newest step that opens and verifies.
  ChosenStep Choose(StepId at_most = StepId()) {
    return ChooseStep(List(), at_most, [this](const ListedStep& listed) -> absl::Status {
      const auto step = StepFiles::Open((path_ / listed.name).string());
      return step.ok() ? step->VerifyAll() : step.status();
    });
  }

  fs::path path_;
};

TEST_F(DirectoryTest, ListsNewestFirstWithTheirStates) {
  MakeStep(100);
  MakeStep(1000);
  fs::remove(fs::path(MakeStep(300)) / kConfigFile);
  fs::create_directory(path_ / "step-00000300.partial-j-1");
  fs::create_directory(path_ / "step-00000300.replaced-1");
  fs::create_directory(path_ / "something");
  fs::create_directory_symlink("step-00001000", path_ / kLatestLink);
  std::vector<std::string> seen;
  for (const ListedStep& step : List()) {
    seen.push_back(absl::StrCat(step.name, " ", StepStateName(step.state)));
    EXPECT_EQ(step.manifest.has_value(), step.state == StepState::kComplete);
  }
  EXPECT_THAT(seen, ElementsAre("step-00001000 complete", "step-00000300 damaged",
                                "step-00000300.partial-j-1 partial",
                                "step-00000300.replaced-1 replaced", "step-00000100 complete"));
  EXPECT_THAT(List()[1].reason, HasSubstr("config.json is missing"));
}

TEST_F(DirectoryTest, TheFilesOfTheModelVerifyWithoutThoseOfTheOptimizer) {
  const std::string step = MakeStep(100);
  Manifest manifest = *ReadCompleteStep(step);
  manifest.files.push_back({OptimizerFile(LayerId(0), 1), 3, HashOf({})});
  Write(fs::path(step) / kManifestFile, *FormatManifest(manifest));
  EXPECT_FALSE(ReadCompleteStep(step).ok());
  EXPECT_TRUE(VerifyModelFiles(step).ok()) << VerifyModelFiles(step);
  Write(fs::path(step) / kConfigFile, "[]\n");
  const absl::Status changed = VerifyModelFiles(step);
  EXPECT_TRUE(absl::IsDataLoss(changed)) << changed;
  EXPECT_THAT(std::string(changed.message()), HasSubstr("config.json is damaged"));
  Write(fs::path(step) / kConfigFile, "{}\n");
  Write(fs::path(step) / "model-9.safetensors", "");
  EXPECT_THAT(std::string(VerifyModelFiles(step).message()), HasSubstr("is not in the manifest"));
}

TEST_F(DirectoryTest, OnlyWhatIsReadShowsDamage) {
  EXPECT_TRUE(IsDamage(absl::DataLossError("its XXH3-128 is another")));
  EXPECT_TRUE(IsDamage(absl::InvalidArgumentError("not a manifest")));
  for (const int error : {EIO, ESTALE, EINVAL, EACCES, ETIMEDOUT, ENOMEM})
    EXPECT_FALSE(IsDamage(FileError(error, "manifest.json"))) << error;
  MakeStep(100);
  fs::remove(fs::path(MakeStep(200)) / kConfigFile);
  for (const ListedStep& step : List()) EXPECT_TRUE(step.disk_error.ok()) << step.name;
  // A loop of links stands for a disk that fails: no user's rights lead around it.
  const fs::path manifest = fs::path(MakeStep(300)) / kManifestFile;
  fs::remove(manifest);
  fs::create_symlink(manifest, manifest);
  const ListedStep looped = List().front();
  EXPECT_EQ(looped.state, StepState::kDamaged);
  EXPECT_FALSE(looped.disk_error.ok());
}

TEST_F(DirectoryTest, MissingDirectoryIsSaid) {
  const absl::Status status = ListSteps((path_ / "none").string()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("none"));
}

TEST_F(DirectoryTest, OpensAndFindsTensors) {
  const auto step = StepFiles::Open(MakeStep(7));
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_EQ(step->manifest().step, StepId(7));
  const Tensor* tensor = step->Find("w");
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(tensor->bytes.size(), 16U);
  EXPECT_EQ(step->Find("x"), nullptr);
  ASSERT_NE(step->View(ModelFile(LayerId(0), 1)), nullptr);
  EXPECT_EQ(step->View(kConfigFile), nullptr);
  EXPECT_TRUE(step->VerifyAll().ok());
}

// Damages of a step, and what the list then says about it.
TEST_F(DirectoryTest, DamageIsNamed) {
  const std::string shard = ModelFile(LayerId(0), 1);
  const struct {
    const char* what;
    std::function<void(const fs::path&)> harm;
    std::string file, rule;
  } cases[] = {
      {"no manifest", [](const fs::path& p) { fs::remove(p / kManifestFile); }, kManifestFile,
       "is missing"},
      {"cut", [&](const fs::path& p) { fs::resize_file(p / shard, 20); }, shard, "has 20 bytes"},
      {"longer", [&](const fs::path& p) { fs::resize_file(p / shard, 2000); }, shard,
       "has 2000 bytes"},
      {"missing", [&](const fs::path& p) { fs::remove(p / shard); }, shard, "is missing"},
      {"no file",
       [&](const fs::path& p) {
         fs::remove(p / shard);
         fs::create_directory(p / shard);
       },
       shard, "not a regular file"},
      {"extra", [](const fs::path& p) { Write(p / "model.safetensors", "x"); }, "model.safetensors",
       "is not in the manifest"},
      {"another step's",
       [this](const fs::path& p) {
         fs::copy_file(fs::path(MakeStep(5)) / kManifestFile, p / kManifestFile,
                       fs::copy_options::overwrite_existing);
       },
       kManifestFile, "that of step-00000005"}};
  for (const auto& [what, harm, file, rule] : cases) {
    SCOPED_TRACE(what);
    const std::string path = MakeStep(9);
    harm(path);
    const absl::Status status = StepFiles::Open(path).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr(file));
    EXPECT_THAT(std::string(status.message()), HasSubstr(rule));
    EXPECT_EQ(List()[0].state, StepState::kDamaged);
    fs::remove_all(path);
  }
}

TEST_F(DirectoryTest, ShardsSwappedBetweenStepsAreFound) {
  const fs::path four = MakeStep(4), nine = MakeStep(9);
  const std::string shard = ModelFile(LayerId(0), 1);
  fs::copy_file(four / shard, nine / shard, fs::copy_options::overwrite_existing);
  const auto step = StepFiles::Open(nine.string());
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_THAT(std::string(step->VerifyAll().message()), HasSubstr(shard));
}

TEST_F(DirectoryTest, ChoosesTheNewestThatLoadsAndSaysWhyNotOthers) {
  MakeStep(1);
  MakeStep(2);
  fs::remove(fs::path(MakeStep(3)) / kConfigFile);
  fs::create_directory(path_ / "step-00000009.partial-j-1");
  ChosenStep chosen = Choose();
  EXPECT_EQ(chosen.step, StepId(2));
  ASSERT_EQ(chosen.passed_over.size(), 1U);
  EXPECT_EQ(chosen.passed_over[0].step, StepId(3));
  EXPECT_THAT(chosen.passed_over[0].reason, HasSubstr("config.json is missing"));
  chosen = Choose(StepId(1));
  EXPECT_EQ(chosen.step, StepId(1));
  EXPECT_THAT(chosen.passed_over, IsEmpty());
  Write(path_ / StepDirectoryName(StepId(1)) / kConfigFile, "{ \n");
  Write(path_ / StepDirectoryName(StepId(2)) / kConfigFile, "{ \n");
  chosen = Choose();
  EXPECT_EQ(chosen.step, std::nullopt);
  EXPECT_EQ(chosen.passed_over.size(), 3U);
}

void WriteByte(const fs::path& path, std::size_t at, char byte) {
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary)
      .seekp(static_cast<std::streamoff>(at))
      .put(byte);
}

// Changes every byte of every file of the newer step, and truncates the file to every length. The
// older step is used each time, and the reason names the file.
TEST_F(DirectoryTest, EveryChangedByteAndEveryTruncationFallsBack) {
  MakeStep(1);
  const fs::path newer = MakeStep(2);
  ASSERT_EQ(Choose().step, StepId(2));
  for (const fs::directory_entry& entry : fs::directory_iterator(newer)) {
    const fs::path& path = entry.path();
    std::ifstream in(path, std::ios::binary);
    const std::string good{std::istreambuf_iterator<char>(in), {}};
    const auto expect_fallback = [&](std::size_t at) {
      const ChosenStep chosen = Choose();
      EXPECT_EQ(chosen.step, StepId(1)) << path << " " << at;
      ASSERT_EQ(chosen.passed_over.size(), 1U);
      EXPECT_THAT(chosen.passed_over[0].reason, HasSubstr(path.filename().string()));
    };
    for (std::size_t i = 0; i < good.size() && !HasFailure(); ++i) {
      for (const char mask : {'\x01', '\x20', '\x80', '\xff'}) {
        WriteByte(path, i, static_cast<char>(good[i] ^ mask));
        expect_fallback(i);
      }
      WriteByte(path, i, good[i]);
    }
    ASSERT_EQ(Choose().step, StepId(2));
    for (std::size_t size = good.size(); size-- > 0 && !HasFailure();) {
      fs::resize_file(path, size);
      expect_fallback(size);
    }
    Write(path, good);
  }
  EXPECT_EQ(Choose().step, StepId(2));
}

}  // namespace
}  // namespace takt::checkpoint
