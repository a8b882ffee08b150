// SPDX-License-Identifier: Apache-2.0
#include "worker/session/resume.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
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
    const auto committed = worker_checkpoint::Publish(
        *files, directory(), checkpoint::FormatManifest(manifest).value(), {.token = "a"});
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

  // Rank 0 names the field, and the others only hear of it, so that its error is the one that
  // counts.
  void ExpectNoneLoads(const std::vector<absl::StatusOr<control::Resumed>>& results,
                       const std::string& text) {
    for (int rank = 0; rank < kRanks; ++rank) {
      const absl::Status& status = results[rank].status();
      EXPECT_EQ(status.code(),
                rank == 0 ? absl::StatusCode::kFailedPrecondition : absl::StatusCode::kUnavailable)
          << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(text));
    }
    const std::vector<FieldError> errors = FieldErrorsOf(results[0].status());
    ASSERT_EQ(errors.size(), 1u);
    EXPECT_EQ(errors[0].field, "checkpoint.directory");
    EXPECT_EQ(errors[0].value, directory());
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
  ExpectNoneLoads(Agree("auto", Job(), load), "step 10 passed over: bad hash");
}

// A disk that fails, or a mount that is gone, says nothing about the checkpoint.
TEST_F(ResumeTest, ARankThatCannotReadIsNoReasonToGoBack) {
  for (const int step : {10, 20}) Save(step);
  for (const int troubled : {0, 2}) {
    const auto results = Agree("auto", Job(), [&](int rank, StepId step) {
      if (step != StepId(20)) return absl::OkStatus();
      if (rank == troubled) return absl::UnknownError("Input/output error");
      return rank == 1 ? absl::DataLossError("bad hash") : absl::OkStatus();
    });
    for (int rank = 0; rank < kRanks; ++rank) {
      const absl::Status& status = results[rank].status();
      EXPECT_EQ(status.code(),
                rank == troubled ? absl::StatusCode::kUnknown : absl::StatusCode::kUnavailable)
          << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("Input/output error"));
      if (rank != troubled) {
        EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("rank ", troubled)));
      }
    }
  }
}

TEST_F(ResumeTest, AStepWhoseManifestCannotBeReadIsNotPassedOver) {
  for (const int step : {10, 20}) Save(step);
  const std::string manifest = directory() + "/step-00000020/manifest.json";
  std::filesystem::remove(manifest);
  std::filesystem::create_symlink(manifest, manifest);  // ELOOP
  const auto results = Agree("auto", Job(), LoadsAll);
  EXPECT_EQ(results[0].status().code(), absl::StatusCode::kUnknown) << results[0].status();
  for (const int rank : {1, 2})
    EXPECT_EQ(results[rank].status().code(), absl::StatusCode::kUnavailable);
  ExpectStep(Agree("auto", Job(), LoadsAll, StepId(19)), 10);
}

// A word of rank 0 that no program of ours says ends the meeting, not the process, and is no error
// of the rank that reads it.
TEST_F(ResumeTest, AWordThatCannotBeReadIsRankZeros) {
  for (const char* const word : {"", "t", "tt", "x10", "t-1", "t99999999999999999999", "g10", "b3",
                                 "r", "r0:fine", "r17:no such code", "r:", "\xff\xff"}) {
    takt::testing::MapRendezvous rendezvous;
    ASSERT_TRUE(rendezvous.Set("resume/0", word).ok());
    const config::JobSpec job = Job();
    const auto resumed =
        AgreeOnResume({.rendezvous = &rendezvous, .rank = Rank(1), .num_ranks = 2},
                      {.job = &job, .directory = directory(), .wanted = "auto"},
                      [](const checkpoint::StepFiles&) { return absl::OkStatus(); });
    EXPECT_EQ(resumed.status().code(), absl::StatusCode::kUnavailable)
        << word << ": " << resumed.status();
    EXPECT_THAT(std::string(resumed.status().message()), HasSubstr("rank 0"));
  }
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
  ExpectNoneLoads(Agree("10", Job(), LoadsAll), "step 10");
}

TEST_F(ResumeTest, StorageThatIsNotSharedIsNoticedByTheWorkerThatHasAnother) {
  const takt::testing::TemporaryDirectory other;
  for (const int odd : {-1, 0, 2}) {  // -1: none
    takt::testing::MapRendezvous rendezvous;
    std::vector<absl::Status> results(kRanks);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks.emplace_back([&, rank] {
        const std::string& path = rank == odd ? other.path() : directory();
        results[rank] = CheckShared(
            {.rendezvous = &rendezvous, .rank = Rank(rank), .num_ranks = kRanks}, path, ".shared");
      });
    }
    for (std::thread& rank : ranks) rank.join();
    for (int rank = 0; rank < kRanks; ++rank) {
      const absl::Status& status = results[rank];
      // A rank that sees the file goes on, and is stopped by the coordinator.
      const bool complains = odd >= 0 && (rank == 0 || odd == 0 || rank == odd);
      EXPECT_EQ(status.code(), !complains    ? absl::StatusCode::kOk
                               : rank == odd ? absl::StatusCode::kFailedPrecondition
                                             : absl::StatusCode::kUnavailable)
          << "rank " << rank << ", odd " << odd << ": " << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(complains ? "does not see" : ""));
    }
    EXPECT_TRUE(std::filesystem::is_empty(directory()));
    EXPECT_TRUE(std::filesystem::is_empty(other.path()));
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
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_EQ(FieldErrorsOf(status).size(), 1u);
  EXPECT_EQ(std::filesystem::file_size(treasure), 4u);
}

class AwaitSavedTest : public ResumeTest {
 protected:
  // Looks for step 20. `pauses` counts down while nothing happens; then `happens` does.
  absl::Status Await(int pauses, const std::function<void()>& happens, StepId at_most = {}) {
    return AwaitSaved({.step = StepId(20),
                       .at_most = at_most,
                       .directory = "runs/kjv",
                       .resolve = [this]() -> absl::StatusOr<std::string> {
                         if (resolves_) return directory();
                         return absl::InvalidArgumentError("must exist");
                       },
                       .pause =
                           [&](absl::Duration) {
                             if (--pauses == 0) happens();
                           },
                       .given_up = &given_up_});
  }
  static void Nothing() {}

  bool resolves_ = true;
  std::atomic<bool> given_up_ = false;
};

TEST_F(AwaitSavedTest, WhatIsThereIsSeenAtOnce) {
  Save(20);
  EXPECT_EQ(Await(-1, [] { ADD_FAILURE() << "paused"; }), absl::OkStatus());
  Damage(20);  // seen all the same: whether it can be used is decided later
  EXPECT_EQ(Await(-1, Nothing), absl::OkStatus());
}

TEST_F(AwaitSavedTest, ANewerOneWillDoUnlessItMayNotBeTaken) {
  Save(30);
  EXPECT_EQ(Await(-1, Nothing), absl::OkStatus());
  EXPECT_FALSE(Await(-1, Nothing, StepId(20)).ok());
}

TEST_F(AwaitSavedTest, ANameThatShowsLateIsWaitedFor) {
  EXPECT_EQ(Await(7, [this] { Save(20); }), absl::OkStatus());
  resolves_ = false;
  EXPECT_EQ(Await(7, [this] { resolves_ = true; }), absl::OkStatus());
}

// The storage is not mounted on this host.
TEST_F(AwaitSavedTest, AWorkerThatDoesNotSeeItRefusesSayingWhatItSees) {
  absl::Status status = Await(-1, Nothing);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("checkpoint.directory is runs/kjv: must show the checkpoint of step 20, "
                        "which this job has; on this worker there is none; mount"));
  Save(10);
  EXPECT_THAT(std::string(Await(-1, Nothing).message()), HasSubstr("the newest is of step 10"));
  resolves_ = false;
  EXPECT_THAT(std::string(Await(-1, Nothing).message()), HasSubstr("must exist"));
}

TEST_F(AwaitSavedTest, AWaitThatIsGivenUpEnds) {
  bool later = false;
  const absl::Status status = AwaitSaved({.step = StepId(20),
                                          .directory = "c",
                                          .resolve = [this] { return directory(); },
                                          .pause =
                                              [&](absl::Duration) {
                                                EXPECT_FALSE(later);
                                                later = given_up_ = true;
                                              },
                                          .given_up = &given_up_});
  EXPECT_FALSE(status.ok());
}

}  // namespace
}  // namespace takt::session
