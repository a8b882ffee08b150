// SPDX-License-Identifier: Apache-2.0
// A process that makes a checkpoint visible is paused before each of its calls in turn. Others do
// not wait for it. Then it goes on.
#include <filesystem>
#include <fstream>
#include <functional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/checkpoint/directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/checkpoint_job.h"
#include "tests/testing/faulty_file_system.h"
#include "worker/checkpoint/commit.h"
#include "worker/checkpoint/ownership.h"

namespace takt::worker_checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::UnorderedElementsAre;

checkpoint::Owner Later(checkpoint::Owner owner) {
  ++owner.generation;
  return owner;
}

// Says where the process is paused, and what is in its way.
struct Place {
  bool exchanges = true;  // the file system can exchange two names
  bool in_the_way = false;
};

class PausedPublisher : public ::testing::Test {
 protected:
  // Publishes step 100 of generation 1 in every place, with a pause before each call in turn.
  // `meanwhile` happens during the pause, and `expect` looks at the outcome.
  void PauseEverywhere(const std::function<void(const std::string& directory)>& meanwhile,
                       const std::function<void(const std::string& directory, Place place,
                                                const absl::Status& published)>& expect) {
    for (const Place place : {Place{true, false}, Place{true, true}, Place{false, true}}) {
      bool paused = true;
      for (int call = 1; paused && !HasFailure(); ++call) {
        SCOPED_TRACE(absl::StrCat("exchanges ", place.exchanges, ", in the way ", place.in_the_way,
                                  ", call ", call));
        paused = PauseAt(call, place, meanwhile, expect);
        EXPECT_TRUE(paused || call > 10) << "a process makes more calls than that";
      }
    }
  }

  // Writes the files of step 100 and returns its manifest.
  std::string Written(const testing::CheckpointJob& job, const std::string& directory) const {
    const std::vector<std::vector<LayerId>> one_rank = {job.AllLayers()};
    return job.SaveShards(*disk_, directory, StepId(100), one_rank).value();
  }

  std::vector<std::string> NamesWith(const std::string& directory, const std::string& part) const {
    std::vector<std::string> names = disk_->List(directory).value();
    std::erase_if(names, [&](const std::string& name) { return !absl::StrContains(name, part); });
    return names;
  }

  const testing::CheckpointJob job_;
  const std::unique_ptr<FileSystem> disk_ = CreatePosixFileSystem();
  std::string manifest_;     // of generation 1
  checkpoint::Owner owner_;  // as the paused process has it

 private:
  // Returns false if the process ended before that call.
  bool PauseAt(int call, Place place, const std::function<void(const std::string&)>& meanwhile,
               const std::function<void(const std::string&, Place, const absl::Status&)>& expect) {
    const testing::TemporaryDirectory directory;
    const std::string& path = directory.path();
    if (place.in_the_way) {
      fs::create_directory(path + "/step-00000100");
      std::ofstream(path + "/step-00000100/old") << "x";
    }
    manifest_ = Written(job_, path);
    bool paused = false;
    testing::FaultyFileSystem files(*disk_);
    if (!place.exchanges) files.ForbidExchange();
    files.Before(call, [&] {
      paused = true;
      meanwhile(path);
    });
    const absl::Status published =
        Publish(files, path, manifest_, {.token = "a", .owner = owner_}).status();
    if (paused) {
      expect(path, place, published);
    } else {
      EXPECT_EQ(published, absl::OkStatus());
    }
    return paused;
  }
};

// The coordinator took the paused process for lost and asked another one.
TEST_F(PausedPublisher, FindsWhatAnotherProcessPublishedForIt) {
  PauseEverywhere(
      [&](const std::string& directory) {
        EXPECT_EQ(Publish(*disk_, directory, manifest_, {.token = "b"}).status(), absl::OkStatus());
      },
      [&](const std::string& directory, Place place, const absl::Status& published) {
        EXPECT_EQ(published, absl::OkStatus());
        EXPECT_EQ(job_.Check(directory + "/step-00000100"), absl::OkStatus());
        EXPECT_EQ(fs::read_symlink(directory + "/latest"), "step-00000100");
        EXPECT_THAT(NamesWith(directory, ".partial"), ::testing::IsEmpty());
        EXPECT_THAT(NamesWith(directory + "/step-00000100", ".partial"), ::testing::IsEmpty());
        EXPECT_THAT(NamesWith(directory, ".replaced"), ::testing::SizeIs(place.in_the_way ? 1 : 0));
        for (const std::string& replaced : NamesWith(directory, ".replaced"))
          EXPECT_TRUE(fs::exists(absl::StrCat(directory, "/", replaced, "/old")));
      });
}

// The job went on without it, and its next generation reached the same step.
TEST_F(PausedPublisher, LeavesAloneWhatALaterGenerationPublished) {
  testing::CheckpointJob later;
  later.generation = Generation(2);
  PauseEverywhere(
      [&](const std::string& directory) {
        ASSERT_TRUE(RemoveStale(*disk_, directory, "small-gpt", Generation(2)).ok());
        const std::string manifest = Written(later, directory);
        EXPECT_EQ(Publish(*disk_, directory, manifest, {.token = "b"}).status(), absl::OkStatus());
      },
      [&](const std::string& directory, Place, const absl::Status&) {
        const auto there = checkpoint::ReadCompleteStep(directory + "/step-00000100");
        ASSERT_TRUE(there.ok()) << there.status();
        EXPECT_EQ(there->generation, Generation(2));
        EXPECT_EQ(later.Check(directory + "/step-00000100"), absl::OkStatus());
        EXPECT_EQ(fs::read_symlink(directory + "/latest"), "step-00000100");
      });
}

// It takes the directory before it changes anything. After its pause the process makes the call
// that it was about to make, and no further change.
TEST_F(PausedPublisher, GivesUpOnceALaterGenerationHasTakenTheDirectory) {
  owner_ = {.job_id = "id", .job = "small-gpt", .generation = Generation(1)};
  bool was_published = false;
  int published_anyway = 0;
  PauseEverywhere(
      [&](const std::string& directory) {
        EXPECT_EQ(TakeOwnership(*disk_, directory, Later(owner_)), absl::OkStatus());
        was_published = job_.Check(directory + "/step-00000100").ok();
      },
      [&](const std::string& directory, Place, const absl::Status&) {
        if (!was_published && job_.Check(directory + "/step-00000100").ok()) ++published_anyway;
      });
  // Before a rename, before an exchange, and before either of the two renames that replace one.
  EXPECT_LE(published_anyway, 4);
}

TEST_F(PausedPublisher, RemovesNothingOnceALaterGenerationHasTakenTheDirectory) {
  const testing::TemporaryDirectory directory;
  const std::string& path = directory.path();
  for (const int step : {10, 20, 30})
    ASSERT_TRUE(job_.Save(*disk_, path, StepId(step), /*keep=*/3).ok());
  const checkpoint::Owner owner{.job_id = "id", .job = "small-gpt", .generation = Generation(1)};
  ASSERT_TRUE(TakeOwnership(*disk_, path, owner).ok());
  testing::FaultyFileSystem files(*disk_);
  files.Before(1, [&] { EXPECT_EQ(TakeOwnership(*disk_, path, Later(owner)), absl::OkStatus()); });
  EXPECT_TRUE(absl::IsAborted(
      Retain(files, path, {.step = StepId(30), .keep = 1, .owner = owner}).status()));
  EXPECT_THAT(NamesWith(path, "step-"),
              UnorderedElementsAre("step-00000010", "step-00000020", "step-00000030"));
}

}  // namespace
}  // namespace takt::worker_checkpoint
