// SPDX-License-Identifier: Apache-2.0
// Makes every call to the disk fail once, and also all calls from each call on. What was there
// before must stay.
#include <filesystem>
#include <ostream>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/layout.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/checkpoint_job.h"
#include "tests/testing/faulty_file_system.h"
#include "worker/checkpoint/commit.h"

namespace takt::worker_checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr int kForEver = 1 << 30;

struct Fault {
  const char* name;
  absl::Status error;
  bool lasting;
};

void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

class FailingDisk : public ::testing::TestWithParam<Fault> {
 protected:
  // Step 1 is complete. Saves step 2, after which step 1 is to be removed, with a fault at call
  // `at`.
  // Returns whether a call failed at all.
  bool SaveWithFaultAt(int at) {
    const testing::TemporaryDirectory directory;
    const std::string& path = directory.path();
    EXPECT_TRUE(job_.Save(*disk_, path, StepId(1), 1).ok());
    testing::FaultyFileSystem faulty(*disk_);
    faulty.Fail(at, GetParam().lasting ? kForEver : at, GetParam().error);
    const absl::Status saved = job_.Save(faulty, path, StepId(2), 1);
    const bool failed = faulty.calls() >= at;

    // Takt promises that `latest` names a complete checkpoint, and the newest one loads.
    EXPECT_TRUE(job_.Check(fs::canonical(path + "/latest").string()).ok());
    const checkpoint::ChosenStep newest = job_.Newest(path);
    EXPECT_TRUE(newest.step.has_value());
    EXPECT_TRUE(newest.passed_over.empty());
    if (saved.ok()) {
      EXPECT_EQ(newest.step, StepId(2));
    } else {
      EXPECT_EQ(saved.code(), GetParam().error.code());
    }
    ExpectRecovery(path);
    return failed;
  }

  // The disk works again: what the failed save left is removed, and the next checkpoint works as
  // usual.
  void ExpectRecovery(const std::string& path) {
    EXPECT_TRUE(RemovePartial(*disk_, path, StepId(2), "small-gpt", Generation(1)).ok());
    EXPECT_TRUE(RemoveStale(*disk_, path, "small-gpt", Generation(1)).ok());
    EXPECT_TRUE(job_.Save(*disk_, path, StepId(3), 1).ok());
    std::vector<std::string> names = *disk_->List(path);
    EXPECT_THAT(names, ::testing::UnorderedElementsAre("latest", "step-00000003"));
    EXPECT_EQ(job_.Newest(path).step, StepId(3));
  }

  const testing::CheckpointJob job_;
  const std::unique_ptr<FileSystem> disk_ = CreatePosixFileSystem();
};

TEST_P(FailingDisk, LatestStaysCompleteWhicheverCallFails) {
  int at = 1;
  while (SaveWithFaultAt(at) && !HasFailure()) ++at;
  EXPECT_GT(at, 40);  // a save makes at least this many calls
}

INSTANTIATE_TEST_SUITE_P(
    Faults, FailingDisk,
    ::testing::Values(Fault{"NoSpaceOnce", absl::ResourceExhaustedError("no space"), false},
                      Fault{"NoSpaceFromThenOn", absl::ResourceExhaustedError("no space"), true},
                      Fault{"BrokenOnce", absl::InternalError("EIO"), false},
                      Fault{"BrokenFromThenOn", absl::InternalError("EIO"), true}),
    [](const auto& info) { return info.param.name; });

TEST(FailedShards, LeaveNoFileOfTheRankThatFailed) {
  const testing::TemporaryDirectory directory;
  const testing::CheckpointJob job;
  const std::unique_ptr<FileSystem> disk = CreatePosixFileSystem();
  const std::vector<std::vector<LayerId>> ranks = {job.AllLayers()};
  for (int at = 2;; ++at) {
    testing::FaultyFileSystem faulty(*disk);
    faulty.Fail(at, at, absl::ResourceExhaustedError("no space"));
    const auto saved = job.SaveShards(faulty, directory.path(), StepId(1), ranks);
    if (saved.ok()) break;
    EXPECT_EQ(saved.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_TRUE(
        fs::is_empty(directory.path() + "/" +
                     checkpoint::PartialDirectoryName(StepId(1), "small-gpt", Generation(1))))
        << at;
  }
}

}  // namespace
}  // namespace takt::worker_checkpoint
