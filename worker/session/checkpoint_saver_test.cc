// SPDX-License-Identifier: Apache-2.0
#include "worker/session/checkpoint_saver.h"

#include <filesystem>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/checkpoint_job.h"
#include "tests/testing/faulty_file_system.h"

namespace takt::session {
namespace {

class CheckpointSaverTest : public ::testing::Test {
 protected:
  std::unique_ptr<CheckpointSaver> Saver(worker_checkpoint::FileSystem& files) {
    CheckpointSaverOptions options;
    options.key = {"kjv", Generation(2)};
    options.rank = Rank(1);
    options.directory = directory_.path();
    options.num_layers = job_.num_layers();
    options.texts = {{"config.json", "{}"}};
    options.complete = complete_;
    options.given_up = &given_up_;
    options.withdraw = [this](StepId step, const std::string&) {
      withdrawn_.push_back(step);
      return away_;
    };
    options.files = &files;
    return CheckpointSaver::Create(std::move(options), Live()).value();
  }
  std::vector<worker_checkpoint::LayerState> Live() { return state_.Layers(job_.AllLayers()); }
  // Called on the saver's thread, read after Finish.
  std::function<void(control::CheckpointReport)> Keep() {
    return [this](control::CheckpointReport report) { reports_.push_back(std::move(report)); };
  }
  std::string Partial(int step) const {
    return directory_.path() + "/step-0000000" + std::to_string(step) + ".partial-kjv-2";
  }

  takt::testing::CheckpointJob job_;
  takt::testing::ModelState state_ = job_.StateAt(StepId(1));
  takt::testing::TemporaryDirectory directory_;
  const std::unique_ptr<worker_checkpoint::FileSystem> files_ =
      worker_checkpoint::CreatePosixFileSystem();
  decltype(CheckpointSaverOptions::complete) complete_;
  std::atomic<bool> given_up_ = false;
  bool away_ = false;  // the coordinator; changed while nothing is written
  std::vector<StepId> withdrawn_;
  std::vector<control::CheckpointReport> reports_;
};

TEST_F(CheckpointSaverTest, ReportsFilesOfEachStepInOrder) {
  const auto saver = Saver(*files_);
  for (int step = 1; step <= 3; ++step) saver->Save(StepId(step), Live(), Keep());
  saver->Finish();
  ASSERT_EQ(reports_.size(), 3u);
  for (int step = 1; step <= 3; ++step) {
    const control::CheckpointReport& report = reports_[step - 1];
    EXPECT_EQ(report.step, StepId(step));
    EXPECT_EQ(report.rank, Rank(1));
    EXPECT_EQ(report.error, "");
    EXPECT_EQ(report.files.size(), 2u * job_.num_layers() + 1);
    for (const checkpoint::FileEntry& file : report.files) {
      EXPECT_EQ(std::filesystem::file_size(Partial(step) + "/" + file.name),
                static_cast<std::uintmax_t>(file.bytes));
    }
  }
}

TEST_F(CheckpointSaverTest, ACopyThatCannotBeCompletedIsNotWritten) {
  absl::Status outcome;
  std::vector<StepId> completed;
  complete_ = [&](StepId step, const worker_checkpoint::Snapshot& copy) {
    EXPECT_EQ(copy.layers().size(), static_cast<std::size_t>(job_.num_layers()));
    completed.push_back(step);
    return outcome;
  };
  const auto saver = Saver(*files_);
  saver->Save(StepId(1), Live(), Keep());
  saver->Finish();
  outcome = absl::UnavailableError("rank 3 left");
  saver->Save(StepId(2), Live(), Keep());
  saver->Finish();
  EXPECT_THAT(completed, ::testing::ElementsAre(StepId(1), StepId(2)));
  ASSERT_EQ(reports_.size(), 2u);
  EXPECT_EQ(reports_[0].error, "");
  EXPECT_THAT(reports_[1].error, ::testing::HasSubstr("rank 3 left"));
  EXPECT_FALSE(std::filesystem::exists(Partial(2)));
}

TEST_F(CheckpointSaverTest, WhileTheCoordinatorIsAwayOneCheckpointIsPending) {
  const auto saver = Saver(*files_);
  saver->Save(StepId(1), Live(), Keep());
  saver->Save(StepId(2), Live(), Keep());
  saver->Finish();
  EXPECT_TRUE(std::filesystem::exists(Partial(1)));
  away_ = true;
  for (int step = 3; step <= 6; ++step) {
    saver->Save(StepId(step), Live(), Keep());
    saver->Finish();
    EXPECT_FALSE(std::filesystem::exists(Partial(step - 1)));
    EXPECT_FALSE(std::filesystem::is_empty(Partial(step)));
  }
  EXPECT_TRUE(std::filesystem::exists(Partial(1)));  // acknowledged
  EXPECT_THAT(withdrawn_,
              ::testing::ElementsAre(StepId(1), StepId(2), StepId(3), StepId(4), StepId(5)));
  for (const control::CheckpointReport& report : reports_) EXPECT_EQ(report.error, "");
}

TEST_F(CheckpointSaverTest, TrainingMayChangeWhatIsBeingWritten) {
  const auto saver = Saver(*files_);
  saver->Save(StepId(1), Live(), Keep());
  const takt::testing::ModelState before = state_;
  for (const worker_checkpoint::LayerTarget& layer : state_.Targets(job_.AllLayers()))
    layer.parameters[0].weight[0] = 1e9F;
  saver->Finish();
  saver->Save(StepId(2), before.Layers(job_.AllLayers()), Keep());
  saver->Finish();
  ASSERT_EQ(reports_.size(), 2u);
  EXPECT_EQ(reports_[0].files, reports_[1].files);
}

TEST_F(CheckpointSaverTest, AFailedSaveIsReportedAndTheNextOneIsWritten) {
  takt::testing::FaultyFileSystem faulty(*files_);
  const auto saver = Saver(faulty);
  faulty.Fail(3, 3, absl::ResourceExhaustedError("No space left on device"));
  saver->Save(StepId(1), Live(), Keep());
  saver->Save(StepId(2), Live(), Keep());
  saver->Finish();
  ASSERT_EQ(reports_.size(), 2u);
  EXPECT_THAT(reports_[0].error, ::testing::StartsWith("RESOURCE_EXHAUSTED"));
  EXPECT_TRUE(reports_[0].files.empty());
  EXPECT_TRUE(std::filesystem::is_empty(Partial(1)));
  EXPECT_EQ(reports_[1].error, "");
}

TEST_F(CheckpointSaverTest, WhatIsGivenUpFailsAndIsReported) {
  const auto saver = Saver(*files_);
  given_up_ = true;
  saver->Save(StepId(1), Live(), Keep());
  saver->Finish();
  ASSERT_EQ(reports_.size(), 1u);
  EXPECT_THAT(reports_[0].error, ::testing::StartsWith("CANCELLED"));
}

}  // namespace
}  // namespace takt::session
