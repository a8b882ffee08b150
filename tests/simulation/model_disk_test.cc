// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/model_disk.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <span>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "worker/checkpoint/commit.h"

namespace takt::simulation {
namespace {

namespace fs = std::filesystem;

// Each case is tried with several random numbers, because a power cut draws how much it takes.
class ModelDiskTest : public ::testing::Test {
 protected:
  void Open(std::uint64_t seed) {
    random_ = Random(seed);
    disk_.emplace(&random_);
    files_ = disk_->Open([] {});
  }
  std::string Path(const std::string& name) const { return disk_->root() + "/" + name; }
  std::string Read(const std::string& name) const {
    std::ifstream file(Path(name));
    return {std::istreambuf_iterator<char>(file), {}};
  }

  Random random_{1};
  std::optional<ModelDisk> disk_;
  std::unique_ptr<worker_checkpoint::FileSystem> files_;
};

TEST_F(ModelDiskTest, WhatWasSyncedSurvives) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Open(seed);
    ASSERT_TRUE(worker_checkpoint::WriteFile(*files_, Path("a"), "text").ok());
    ASSERT_TRUE(files_->Rename(Path("a"), Path("b")).ok());
    ASSERT_TRUE(files_->SyncDirectory(disk_->root()).ok());
    disk_->PowerCut();
    EXPECT_EQ(Read("b"), "text");
    EXPECT_FALSE(fs::exists(Path("a")));
  }
}

TEST_F(ModelDiskTest, NamesThatWereNotSyncedMayBeLost) {
  bool lost = false, kept = false;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Open(seed);
    ASSERT_TRUE(worker_checkpoint::WriteFile(*files_, Path("a"), "new").ok());
    ASSERT_TRUE(worker_checkpoint::WriteFile(*files_, Path("b"), "old").ok());
    ASSERT_TRUE(files_->SyncDirectory(disk_->root()).ok());
    ASSERT_TRUE(files_->Rename(Path("a"), Path("b")).ok());
    disk_->PowerCut();
    lost |= Read("b") == "old" && Read("a") == "new";
    kept |= Read("b") == "new" && !fs::exists(Path("a"));
    EXPECT_TRUE(Read("b") == "old" || Read("b") == "new");
  }
  EXPECT_TRUE(lost);
  EXPECT_TRUE(kept);
}

TEST_F(ModelDiskTest, FilesMoveBackIntoADirectoryWhoseRenameIsLost) {
  bool lost = false;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    Open(seed);
    ASSERT_TRUE(files_->CreateDirectory(Path("d")).ok());
    ASSERT_TRUE(files_->SyncDirectory(disk_->root()).ok());
    ASSERT_TRUE(files_->Rename(Path("d"), Path("e")).ok());
    ASSERT_TRUE(worker_checkpoint::WriteFile(*files_, Path("e/f"), "text").ok());
    ASSERT_TRUE(files_->SyncDirectory(Path("e")).ok());
    disk_->PowerCut();
    lost |= Read("d/f") == "text";
    EXPECT_TRUE(Read("d/f") == "text" || Read("e/f") == "text");
  }
  EXPECT_TRUE(lost);
}

TEST_F(ModelDiskTest, ContentsThatWereNotSyncedMayBeTorn) {
  bool torn = false;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Open(seed);
    auto file = files_->Create(Path("a"));
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(files_->SyncDirectory(disk_->root()).ok());
    ASSERT_TRUE((*file)->Append(std::as_bytes(std::span("12345678", 8))).ok());
    ASSERT_TRUE((*file)->Close().ok());
    disk_->PowerCut();
    torn |= fs::file_size(Path("a")) < 8;
  }
  EXPECT_TRUE(torn);
}

TEST_F(ModelDiskTest, IsFull) {
  Open(1);
  disk_->mood().full = true;
  EXPECT_TRUE(absl::IsResourceExhausted(worker_checkpoint::WriteFile(*files_, Path("a"), "text")));
  disk_->mood().full = false;
  EXPECT_TRUE(worker_checkpoint::WriteFile(*files_, Path("a"), "text").ok());
}

TEST_F(ModelDiskTest, AProcessThatWasKilledMakesNoMoreCalls) {
  Open(1);
  const auto dead = disk_->Open([] { throw ProcessKilled(); });
  EXPECT_THROW(worker_checkpoint::WriteFile(*dead, Path("a"), "text").IgnoreError(), ProcessKilled);
  EXPECT_FALSE(fs::exists(Path("a")));
}

}  // namespace
}  // namespace takt::simulation
