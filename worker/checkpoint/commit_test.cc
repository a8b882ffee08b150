// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/commit.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/layout.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/checkpoint_job.h"
#include "tests/testing/faulty_file_system.h"
#include "worker/checkpoint/save.h"

namespace takt::worker_checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class CommitTest : public ::testing::Test {
 protected:
  std::string Written(std::int64_t step) {
    const std::vector<std::vector<LayerId>> ranks = {job_.AllLayers()};
    auto manifest = job_.SaveShards(*files_, directory_.path(), StepId(step), ranks);
    EXPECT_TRUE(manifest.ok()) << manifest.status();
    return *manifest;
  }

  // Does what a worker does when it is asked, and returns the notes.
  std::vector<std::string> Commit(const std::string& manifest, int keep = 3, StepId resumed = {}) {
    auto notes = Publish(*files_, directory_.path(), manifest, {.token = "a"});
    EXPECT_TRUE(notes.ok()) << notes.status();
    if (!notes.ok()) return {};
    const StepId step = checkpoint::ParseManifest(manifest, "manifest.json")->step;
    const auto removed =
        Retain(*files_, directory_.path(), {.step = step, .keep = keep, .resumed = resumed});
    if (!removed.ok()) {
      notes->emplace_back(removed.status().message());
      return *notes;
    }
    for (const std::string& name : *removed) notes->push_back("removed " + name);
    return *notes;
  }

  std::vector<std::string> Names() {
    std::vector<std::string> names = *files_->List(directory_.path());
    std::ranges::sort(names);
    return names;
  }

  std::string Latest() { return fs::read_symlink(directory_.path() + "/latest").string(); }
  std::string PathOf(const std::string& name) { return directory_.path() + "/" + name; }

  const testing::TemporaryDirectory directory_;
  testing::CheckpointJob job_;
  const std::unique_ptr<FileSystem> files_ = CreatePosixFileSystem();
};

TEST_F(CommitTest, MakesACompleteStepThatLatestNames) {
  const std::string manifest = Written(100);
  EXPECT_THAT(Names(), ElementsAre("step-00000100.partial-small-gpt-1"));
  EXPECT_THAT(Commit(manifest), IsEmpty());
  EXPECT_THAT(Names(), ElementsAre("latest", "step-00000100"));
  EXPECT_EQ(Latest(), "step-00000100");
  EXPECT_TRUE(job_.Check(PathOf("latest/../step-00000100")).ok());
}

TEST_F(CommitTest, WhatNobodyHasClaimedIsRemovedOnce) {
  Written(100);
  const auto remove = [this] {
    return RemoveUnclaimed(*files_, directory_.path(), StepId(100), "small-gpt", Generation(1));
  };
  EXPECT_TRUE(remove().ok());
  EXPECT_THAT(Names(), IsEmpty());
  EXPECT_TRUE(remove().ok());  // by another rank
}

TEST_F(CommitTest, WhatIsBeingMadeVisibleOrIsVisibleIsNotRemoved) {
  Written(100);
  const std::string claimed = "step-00000100.partial-small-gpt-1+b";
  fs::rename(PathOf("step-00000100.partial-small-gpt-1"), PathOf(claimed));
  ASSERT_TRUE(
      RemoveUnclaimed(*files_, directory_.path(), StepId(100), "small-gpt", Generation(1)).ok());
  EXPECT_THAT(Names(), ElementsAre(claimed));
  EXPECT_FALSE(fs::is_empty(PathOf(claimed)));
  Commit(Written(200));
  ASSERT_TRUE(
      RemoveUnclaimed(*files_, directory_.path(), StepId(200), "small-gpt", Generation(1)).ok());
  EXPECT_TRUE(job_.Check(PathOf("step-00000200")).ok());
}

TEST_F(CommitTest, ASecondTimeChangesNothing) {
  const std::string first = Written(100);
  Commit(first);
  EXPECT_THAT(Commit(first), IsEmpty());
  Commit(Written(150));
  // The commit comes late, as after a coordinator's restart.
  EXPECT_THAT(Commit(first), IsEmpty());
  EXPECT_THAT(Names(), ElementsAre("latest", "step-00000100", "step-00000150"));
  EXPECT_EQ(Latest(), "step-00000150");
}

TEST_F(CommitTest, ASecondTimeFinishesWhatACrashLeftUndone) {
  const std::string manifest = Written(100);
  Commit(manifest);
  fs::remove(PathOf("latest"));
  fs::create_symlink("step-00000100", PathOf("latest.partial-a"));
  fs::create_symlink("step-00000100", PathOf("latest.partial-b"));  // of another process
  EXPECT_THAT(Commit(manifest), IsEmpty());
  EXPECT_THAT(Names(), ElementsAre("latest", "latest.partial-b", "step-00000100"));
  EXPECT_TRUE(RemoveStale(*files_, directory_.path(), "small-gpt", Generation(2)).ok());
  EXPECT_THAT(Names(), ElementsAre("latest", "step-00000100"));
}

TEST_F(CommitTest, WhatIsInTheWayIsMovedAsideAndCountsNoMore) {
  Commit(Written(50));
  Commit(Written(100));
  for (const char* replaced : {"step-00000100.replaced-1", "step-00000100.replaced-2"}) {
    std::ofstream(PathOf("step-00000100/config.json")) << "{x\n";
    ++job_.generation;
    EXPECT_THAT(Commit(Written(100), 2),
                ElementsAre(absl::StrCat("moved the step-00000100 that was there to ", replaced)));
    EXPECT_TRUE(job_.Check(PathOf("step-00000100")).ok());
    EXPECT_TRUE(fs::exists(PathOf(replaced) + "/config.json"));
  }
  EXPECT_THAT(Names(), ElementsAre("latest", "step-00000050", "step-00000100",
                                   "step-00000100.replaced-1", "step-00000100.replaced-2"));
}

// A coordinator that begins with nothing counts generations from 1 again, so that the same job
// writes the same manifest. The checkpoint of its earlier life is damaged, which is why it trains
// again.
TEST_F(CommitTest, WhatHasTheSameManifestIsMovedAsideIfTheFilesWereWrittenAgain) {
  const std::string manifest = Written(100);
  Commit(manifest);
  const std::string shard = "/" + checkpoint::ModelFile(LayerId(1), 4);
  std::fstream file(PathOf("step-00000100") + shard,
                    std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1, std::ios::end);
  file.put('x');
  file.close();
  ASSERT_FALSE(job_.Check(PathOf("step-00000100")).ok());
  ASSERT_EQ(Written(100), manifest);
  fs::create_directory(PathOf("step-00000100.partial-small-gpt-1+a"));  // of a save that failed
  EXPECT_THAT(Commit(manifest), ElementsAre(HasSubstr("to step-00000100.replaced-1")));
  EXPECT_TRUE(job_.Check(PathOf("step-00000100")).ok());
  EXPECT_THAT(Names(), ElementsAre("latest", "step-00000100", "step-00000100.replaced-1"));
}

TEST_F(CommitTest, WhatIsInTheWayIsMovedAsideWithoutExchangeToo) {
  Commit(Written(100));
  ++job_.generation;
  const std::string manifest = Written(100);
  testing::FaultyFileSystem nfs(*files_);
  nfs.ForbidExchange();
  ASSERT_TRUE(Publish(nfs, directory_.path(), manifest, {.token = "a"}).ok());
  EXPECT_THAT(Names(), ElementsAre("latest", "step-00000100", "step-00000100.replaced-1"));
  EXPECT_EQ(checkpoint::ReadCompleteStep(PathOf("step-00000100"))->generation, Generation(2));
}

// A worker died between its exchange and the next call.
TEST_F(CommitTest, ASecondTimeMovesAsideWhatTheFirstExchanged) {
  Commit(Written(100));
  ++job_.generation;
  const std::string manifest = Written(100);
  std::ofstream(PathOf("step-00000100.partial-small-gpt-2/manifest.json")) << manifest;
  ASSERT_TRUE(
      files_->Exchange(PathOf("step-00000100.partial-small-gpt-2"), PathOf("step-00000100")).ok());
  EXPECT_THAT(Commit(manifest), ElementsAre(HasSubstr("to step-00000100.replaced-1")));
  EXPECT_EQ(checkpoint::ReadCompleteStep(PathOf("step-00000100"))->generation, Generation(2));
}

// The checkpoint of a job whose layers only take time.
TEST_F(CommitTest, AStepWithoutFilesIsOneToo) {
  ASSERT_TRUE(SaveShards(*files_, {.directory = PathOf("step-00000005.partial-e-1")}).ok());
  const auto manifest = checkpoint::FormatManifest(
      {.job = "e", .generation = Generation(1), .step = StepId(5), .files = {}});
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  Commit(*manifest);
  EXPECT_TRUE(checkpoint::StepFiles::Open(PathOf("latest"))->VerifyAll().ok());
  EXPECT_EQ(checkpoint::ListSteps(directory_.path())->front().state,
            checkpoint::StepState::kComplete);
}

TEST_F(CommitTest, RefusesFilesThatAreNotAllThere) {
  const std::string manifest = Written(100);
  const std::string shard =
      PathOf("step-00000100.partial-small-gpt-1/") + checkpoint::ModelFile(LayerId(1), 4);
  fs::resize_file(shard, fs::file_size(shard) - 1);
  absl::Status status = Publish(*files_, directory_.path(), manifest, {.token = "a"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr(shard));
  fs::remove(shard);
  status = Publish(*files_, directory_.path(), manifest, {.token = "a"}).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("is missing"));
  EXPECT_FALSE(Publish(*files_, directory_.path(), manifest + " ", {.token = "a"}).ok());
  EXPECT_THAT(Names(), ElementsAre("step-00000100.partial-small-gpt-1"));
}

TEST_F(CommitTest, KeepsTheNewestOnes) {
  for (const int step : {10, 20, 30}) Commit(Written(step), 2);
  EXPECT_THAT(Names(), ElementsAre("latest", "step-00000020", "step-00000030"));
  EXPECT_THAT(Commit(Written(40), 1),
              ElementsAre("removed step-00000030", "removed step-00000020"));
  EXPECT_THAT(Names(), ElementsAre("latest", "step-00000040"));
}

// The bits of a file have changed since they were hashed. Its size is right, so that it could be
// published.
TEST_F(CommitTest, NothingIsRemovedForACheckpointThatDoesNotReadBack) {
  for (const int step : {10, 20}) Commit(Written(step));
  const std::string manifest = Written(30);
  const std::string shard = "/" + checkpoint::ModelFile(LayerId(1), 4);
  std::fstream file(PathOf("step-00000030.partial-small-gpt-1") + shard,
                    std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1, std::ios::end);
  file.put('x');
  file.close();
  EXPECT_THAT(Commit(manifest, 1), ElementsAre(HasSubstr("step-00000030" + shard + " is damaged")));
  EXPECT_THAT(Names(), ElementsAre("latest", "step-00000010", "step-00000020", "step-00000030"));
}

TEST_F(CommitTest, TheOneThatTheGenerationWentOnFromStays) {
  for (const int step : {10, 20, 30}) Commit(Written(step));
  EXPECT_THAT(Commit(Written(40), 2, StepId(20)), ElementsAre("removed step-00000010"));
  EXPECT_THAT(Names(), ElementsAre("latest", "step-00000020", "step-00000030", "step-00000040"));
}

// Damaged checkpoints do not count as kept, and are not removed, because a person may want to look
// at them.
TEST_F(CommitTest, DamagedOnesAreNotCounted) {
  for (const int step : {10, 20}) Commit(Written(step));
  fs::remove(PathOf("step-00000020/config.json"));
  EXPECT_THAT(Commit(Written(30), 2), IsEmpty());
  EXPECT_THAT(Names(), ElementsAre("latest", "step-00000010", "step-00000020", "step-00000030"));
}

// Steps above the new one belong to a run that was given up when a person resumed an older step.
TEST_F(CommitTest, NewerOnesAreLeftAlone) {
  for (const int step : {10, 50, 60}) Commit(Written(step));
  Commit(Written(20), 1);
  EXPECT_THAT(Names(), ElementsAre("latest", "step-00000020", "step-00000050", "step-00000060"));
  EXPECT_EQ(Latest(), "step-00000020");
}

TEST_F(CommitTest, AStepThatCannotBeRemovedIsANoteAndNoError) {
  Commit(Written(10));
  fs::create_directories(PathOf("step-00000010/mine/deep"));
  const std::vector<std::string> notes = Commit(Written(20), 1);
  EXPECT_THAT(notes, ElementsAre(HasSubstr("cannot remove step-00000010")));
  EXPECT_EQ(Latest(), "step-00000020");
}

TEST_F(CommitTest, StaleDirectoriesOfEarlierGenerationsGo) {
  Written(10);  // generation 1
  job_.generation = Generation(2);
  Written(20);
  for (const char* name : {"step-00000030.partial-other-1", "step-00000030.partial-removed",
                           "step-00000030.partial-small-gpt-1+a",
                           "step-00000030.partial-small-gpt-x", "step-00000030.replaced-1"}) {
    fs::create_directory(PathOf(name));
  }
  const auto removed = RemoveStale(*files_, directory_.path(), "small-gpt", Generation(2));
  ASSERT_TRUE(removed.ok()) << removed.status();
  EXPECT_THAT(*removed, UnorderedElementsAre("step-00000010.partial-small-gpt-1",
                                             "step-00000030.partial-removed",
                                             "step-00000030.partial-small-gpt-1+a"));
  EXPECT_THAT(Names(),
              ElementsAre("step-00000020.partial-small-gpt-2", "step-00000030.partial-other-1",
                          "step-00000030.partial-small-gpt-x", "step-00000030.replaced-1"));
  const auto remove = [&] {
    return RemovePartial(*files_, directory_.path(), StepId(20), "small-gpt", Generation(2));
  };
  fs::create_directory(PathOf("step-00000020.partial-small-gpt-2+a"));
  EXPECT_TRUE(remove().ok());
  EXPECT_TRUE(remove().ok());
  EXPECT_THAT(Names(),
              ElementsAre("step-00000030.partial-other-1", "step-00000030.partial-small-gpt-x",
                          "step-00000030.replaced-1"));
}

TEST_F(CommitTest, EnsureDirectoryMakesWhatIsMissing) {
  EXPECT_TRUE(EnsureDirectory(*files_, PathOf("a/b/c")).ok());
  EXPECT_TRUE(EnsureDirectory(*files_, PathOf("a/b/c/")).ok());
  EXPECT_TRUE(fs::is_directory(PathOf("a/b/c")));
  std::ofstream(PathOf("file")) << "x";
  EXPECT_FALSE(EnsureDirectory(*files_, PathOf("file/d")).ok());
}

}  // namespace
}  // namespace takt::worker_checkpoint
