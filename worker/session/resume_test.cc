// SPDX-License-Identifier: Apache-2.0
#include "worker/session/resume.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>
#include <vector>

#include "common/checkpoint/layout.h"
#include "common/config/job_file.h"
#include "common/config/job_spec_serde.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "takt/v1/job_spec.pb.h"
#include "tests/testing/checkpoint_job.h"
#include "tests/testing/map_rendezvous.h"
#include "worker/checkpoint/commit.h"
#include "worker/checkpoint/save.h"

namespace takt::session {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kRanks = 3;
constexpr char kJob[] = R"(
name: kjv
model: {family: emulated, layers: 3, forward_ms: 1, input_grad_ms: 1, weight_grad_ms: 1, activation_bytes: 64}
batch: {global: 4, microbatch: 1}
checkpoint: {directory: c}
steps: 90
)";

class ResumeTest : public ::testing::Test {
 protected:
  static config::JobSpec Job(std::vector<std::string> overrides = {}) {
    return *config::ToJobSpec(*config::ParseJobFile(kJob, {.overrides = std::move(overrides)}));
  }

  // Writes a complete checkpoint without files, as emulated jobs do.
  void Save(std::int64_t step) {
    const auto files = worker_checkpoint::CreatePosixFileSystem();
    const checkpoint::Manifest manifest{.job = "kjv",
                                        .generation = Generation(1),
                                        .step = StepId(step),
                                        .windows = step * 4,
                                        .job_spec = config::FormatJobFile(config::ToProto(Job()))};
    const std::string partial =
        directory() + "/" +
        checkpoint::PartialDirectoryName(manifest.step, manifest.job, manifest.generation);
    ASSERT_TRUE(worker_checkpoint::SaveShards(*files, {.directory = partial}).ok());
    const auto committed = worker_checkpoint::Commit(*files, directory(), 9,
                                                     checkpoint::FormatManifest(manifest).value());
    ASSERT_TRUE(committed.ok()) << committed.status();
  }
  void Damage(std::int64_t step) {
    std::ofstream(directory() + "/" + checkpoint::StepDirectoryName(StepId(step)) +
                  "/manifest.json")
        << "{";
  }

  // Returns each rank's result. load: called with (rank, step).
  std::vector<absl::StatusOr<control::Resumed>> Agree(
      const std::string& wanted, const config::JobSpec& job,
      const std::function<absl::Status(int, StepId)>& load, StepId at_most = StepId()) {
    rendezvous_ = std::make_unique<takt::testing::MapRendezvous>();
    std::vector<absl::StatusOr<control::Resumed>> results(kRanks);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks.emplace_back([&, rank] {
        results[rank] = AgreeOnResume(
            {.rendezvous = rendezvous_.get(), .rank = Rank(rank), .num_ranks = kRanks},
            {.job = &job, .directory = directory(), .wanted = wanted, .at_most = at_most},
            [&](const checkpoint::StepFiles& step) { return load(rank, step.manifest().step); });
      });
    }
    for (std::thread& rank : ranks) rank.join();
    return results;
  }
  static absl::Status LoadsAll(int, StepId) { return absl::OkStatus(); }

  // Checks that all ranks go on from `step`, and returns the notes of rank 0.
  static std::vector<std::string> ExpectStep(
      const std::vector<absl::StatusOr<control::Resumed>>& results, std::int64_t step) {
    for (const absl::StatusOr<control::Resumed>& result : results) {
      EXPECT_TRUE(result.ok()) << result.status();
      if (result.ok()) {
        EXPECT_EQ(result->step, StepId(step));
      }
    }
    return results[0].ok() ? results[0]->notes : std::vector<std::string>();
  }
  static void ExpectError(const std::vector<absl::StatusOr<control::Resumed>>& results,
                          absl::StatusCode code, const std::string& text) {
    for (const absl::StatusOr<control::Resumed>& result : results) {
      EXPECT_EQ(result.status().code(), code) << result.status();
      EXPECT_THAT(std::string(result.status().message()), HasSubstr(text));
    }
  }

  const std::string& directory() const { return directory_.path(); }

  takt::testing::TemporaryDirectory directory_;
  std::unique_ptr<takt::testing::MapRendezvous> rendezvous_;
};

TEST_F(ResumeTest, RanksThatMeetWaitForTheLast) {
  takt::testing::MapRendezvous rendezvous;
  std::atomic<int> met = 0;
  const auto meet = [&](int rank) {
    EXPECT_TRUE(
        MeetAll({.rendezvous = &rendezvous, .rank = Rank(rank), .num_ranks = kRanks}, "loaded")
            .ok());
    ++met;
  };
  std::thread first([&] { meet(0); });
  std::thread second([&] { meet(1); });
  // Once the second has come, only the third is missing.
  EXPECT_TRUE(rendezvous.Wait("loaded/1", absl::Minutes(1)).ok());
  EXPECT_EQ(met.load(), 0);
  meet(2);
  first.join();
  second.join();
  EXPECT_EQ(met.load(), kRanks);
}

TEST_F(ResumeTest, BeginsWhereNothingIs) {
  EXPECT_THAT(ExpectStep(Agree("auto", Job(), LoadsAll), 0), IsEmpty());
  std::filesystem::remove(directory());
  EXPECT_THAT(ExpectStep(Agree("auto", Job(), LoadsAll), 0), IsEmpty());
}

TEST_F(ResumeTest, AutoTakesTheNewestWithinItsBound) {
  for (const int step : {10, 20, 30}) Save(step);
  EXPECT_THAT(ExpectStep(Agree("auto", Job(), LoadsAll), 30), IsEmpty());
  EXPECT_THAT(ExpectStep(Agree("auto", Job(), LoadsAll, StepId(29)), 20), IsEmpty());
  EXPECT_THAT(ExpectStep(Agree("none", Job(), LoadsAll), 0), IsEmpty());
  EXPECT_THAT(ExpectStep(Agree("10", Job(), LoadsAll), 10), IsEmpty());
}

TEST_F(ResumeTest, WhatAnyRankCannotLoadIsPassedOverWithItsReason) {
  for (const int step : {10, 20, 30, 40}) Save(step);
  Damage(40);
  std::vector<StepId> loaded_by_rank_2;
  const auto load = [&](int rank, StepId step) {
    if (rank == 2) loaded_by_rank_2.push_back(step);
    const bool bad = (rank == 1 && step == StepId(30)) || (rank == 0 && step == StepId(20));
    return bad ? absl::DataLossError("model-2 does not match") : absl::OkStatus();
  };
  const std::vector<std::string> notes = ExpectStep(Agree("auto", Job(), load), 10);
  EXPECT_THAT(loaded_by_rank_2, ElementsAre(StepId(30), StepId(20), StepId(10)));
  ASSERT_EQ(notes.size(), 3u);
  EXPECT_THAT(notes[0], HasSubstr("step 40"));
  EXPECT_THAT(notes[1], HasSubstr("step 30 passed over: rank 1: model-2 does not match"));
  EXPECT_THAT(notes[2], HasSubstr("step 20 passed over: model-2"));
}

TEST_F(ResumeTest, NeverStartsOverUnaskedWhenAllAreDamaged) {
  for (const int step : {10, 20}) Save(step);
  Damage(20);
  const auto load = [](int, StepId) { return absl::DataLossError("bad hash"); };
  ExpectError(Agree("auto", Job(), load), absl::StatusCode::kDataLoss, "bad hash");
}

TEST_F(ResumeTest, AJobThatDiffersIsRefusedByField) {
  Save(10);
  ExpectError(Agree("auto", Job({"batch.global=8"}), LoadsAll), absl::StatusCode::kInvalidArgument,
              "batch.global");
  ExpectStep(Agree("auto", Job({"steps=200", "parallelism.pipeline=3"}), LoadsAll), 10);
}

TEST_F(ResumeTest, AStepThatIsAskedForMustBeThere) {
  Save(10);
  ExpectError(Agree("20", Job(), LoadsAll), absl::StatusCode::kInvalidArgument, "no such step");
  Damage(10);
  ExpectError(Agree("10", Job(), LoadsAll), absl::StatusCode::kDataLoss, "step 10");
}

TEST_F(ResumeTest, StorageThatIsNotSharedIsNoticed) {
  const takt::testing::TemporaryDirectory other;
  for (const bool shared : {true, false}) {
    takt::testing::MapRendezvous rendezvous;
    std::vector<absl::Status> results(kRanks);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks.emplace_back([&, rank] {
        const std::string& path = rank == 2 && !shared ? other.path() : directory();
        results[rank] = CheckShared(
            {.rendezvous = &rendezvous, .rank = Rank(rank), .num_ranks = kRanks}, path, ".shared");
      });
    }
    for (std::thread& rank : ranks) rank.join();
    EXPECT_EQ(results[0].code(),
              shared ? absl::StatusCode::kOk : absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(results[0].message()), HasSubstr(shared ? "" : "rank 2"));
    EXPECT_TRUE(std::filesystem::is_empty(directory()));
  }
}

TEST_F(ResumeTest, NothingIsWrittenThroughALinkThatWaits) {
  const takt::testing::TemporaryDirectory outside;
  const std::string treasure = outside.path() + "/treasure";
  std::ofstream(treasure) << "gold";
  std::filesystem::create_symlink(treasure, directory() + "/.shared");
  takt::testing::MapRendezvous rendezvous;
  const absl::Status status = CheckShared(
      {.rendezvous = &rendezvous, .rank = Rank(0), .num_ranks = 2}, directory(), ".shared");
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(std::filesystem::file_size(treasure), 4u);
}

}  // namespace
}  // namespace takt::session
