// SPDX-License-Identifier: Apache-2.0
#include "worker/session/checkpoint_committer.h"

#include <filesystem>

#include "absl/synchronization/notification.h"
#include "common/checkpoint/manifest.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/checkpoint_job.h"

namespace takt::session {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
namespace fs = std::filesystem;

class CommitCheckpointTest : public ::testing::Test {
 protected:
  // Writes the parts of all ranks under ROOT/runs.
  control::CommitCheckpoint Written(int step) {
    fs::create_directories(root_.path() + "/runs");
    const std::vector<std::vector<LayerId>> ranks = {job_.AllLayers()};
    const std::string manifest =
        job_.SaveShards(*files_, root_.path() + "/runs", StepId(step), ranks).value();
    const auto parsed = checkpoint::ParseManifest(manifest, "manifest.json");
    return {.key = {parsed->job, parsed->generation},
            .step = StepId(step),
            .directory = "runs",
            .keep = 2,
            .manifest = manifest};
  }
  absl::Status Commit(const control::CommitCheckpoint& request) {
    return CommitCheckpoint(place_, request);
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(root_.path() + "/runs"))
      names.push_back(entry.path().filename());
    return names;
  }
  std::string Latest() const { return fs::read_symlink(root_.path() + "/runs/latest").string(); }

  takt::testing::CheckpointJob job_;
  takt::testing::TemporaryDirectory root_;
  const std::unique_ptr<worker_checkpoint::FileSystem> files_ =
      worker_checkpoint::CreatePosixFileSystem();
  const CommitPlace place_{.files = files_.get(), .root = root_.path(), .incarnation = "life"};
};

TEST_F(CommitCheckpointTest, MakesItVisibleAndMayBeToldTwice) {
  const control::CommitCheckpoint request = Written(1);
  EXPECT_EQ(Commit(request), absl::OkStatus());
  EXPECT_EQ(Latest(), "step-00000001");
  EXPECT_EQ(Commit(request), absl::OkStatus());
  EXPECT_EQ(job_.Check(root_.path() + "/runs/step-00000001"), absl::OkStatus());
}

TEST_F(CommitCheckpointTest, ACoordinatorOfAFormerLifeCommitsNothing) {
  control::CommitCheckpoint former = Written(1), later = Written(2);
  former.job_id = later.job_id = "1d";
  former.epoch = 7;
  later.epoch = 8;
  EXPECT_EQ(Commit(later), absl::OkStatus());
  EXPECT_TRUE(absl::IsAborted(Commit(former)));
  EXPECT_EQ(Latest(), "step-00000002");
  EXPECT_FALSE(fs::exists(root_.path() + "/runs/step-00000001"));
}

TEST_F(CommitCheckpointTest, WithoutAManifestItRemovesWhatThereIs) {
  control::CommitCheckpoint request = Written(1);
  request.manifest.clear();
  EXPECT_EQ(Commit(request), absl::OkStatus());
  EXPECT_TRUE(fs::is_empty(root_.path() + "/runs"));
  EXPECT_EQ(Commit(request), absl::OkStatus());
}

TEST_F(CommitCheckpointTest, EarlierStepsThatNeverBecameCompleteGo) {
  Written(1);
  EXPECT_EQ(Commit(Written(2)), absl::OkStatus());
  EXPECT_THAT(Names(), UnorderedElementsAre("latest", "step-00000002"));
}

TEST_F(CommitCheckpointTest, OlderOnesGoButNotTheOneThatTheGenerationWentOnFrom) {
  for (const int step : {1, 2, 3}) EXPECT_EQ(Commit(Written(step)), absl::OkStatus());
  control::CommitCheckpoint request = Written(4);
  request.resumed = StepId(2);
  EXPECT_EQ(Commit(request), absl::OkStatus());
  EXPECT_EQ(RetainCheckpoints(place_, request), absl::OkStatus());
  EXPECT_THAT(Names(),
              UnorderedElementsAre("latest", "step-00000002", "step-00000003", "step-00000004"));
}

TEST_F(CommitCheckpointTest, ADirectoryOutsideTheRootIsRefused) {
  control::CommitCheckpoint request = Written(1);
  for (const char* const outside : {"../elsewhere", "/etc", "runs/../../elsewhere"}) {
    request.directory = outside;
    const absl::Status status = Commit(request);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("checkpoint.directory"));
  }
}

TEST(CheckpointCommitter, AnswersEachRequestInOrderAndEndsWhatWasAdded) {
  std::vector<std::string> answers;
  {
    CheckpointCommitter committer(
        [](const control::CommitCheckpoint& request) {
          return request.step == StepId(2) ? absl::DataLossError("short") : absl::OkStatus();
        },
        /*retain=*/nullptr,
        [&](const control::CheckpointCommitted& answer) {
          answers.push_back(std::to_string(answer.step.value()) + answer.error);
        });
    for (int step = 1; step <= 3; ++step) committer.Add({.step = StepId(step)});
  }
  EXPECT_THAT(answers, ::testing::ElementsAre("1", "2DATA_LOSS: short", "3"));
}

// Reading a checkpoint back may take longer than the time between two of them.
TEST(CheckpointCommitter, NoCommitWaitsForTheRemovalOfOldOnesAndOnlyTheNewestIsReadBack) {
  std::vector<StepId> retained;
  absl::Notification reading, committed;
  {
    CheckpointCommitter committer([](const control::CommitCheckpoint&) { return absl::OkStatus(); },
                                  [&](const control::CommitCheckpoint& request) {
                                    retained.push_back(request.step);
                                    if (request.step != StepId(1)) return absl::OkStatus();
                                    reading.Notify();
                                    committed.WaitForNotification();
                                    return absl::OkStatus();
                                  },
                                  [&](const control::CheckpointCommitted& answer) {
                                    if (answer.step == StepId(4)) committed.Notify();
                                  });
    committer.Add({.step = StepId(1), .manifest = "m"});
    reading.WaitForNotification();
    for (int step = 2; step <= 4; ++step) committer.Add({.step = StepId(step), .manifest = "m"});
    committed.WaitForNotification();
  }
  EXPECT_THAT(retained, ::testing::ElementsAre(StepId(1), StepId(4)));
}

}  // namespace
}  // namespace takt::session
