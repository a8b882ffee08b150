// SPDX-License-Identifier: Apache-2.0
// The power of everything fails at once while a job saves: coordinator and workers are gone, and
// what was not synced is lost. The job always resumes from a complete checkpoint, no older than the
// one that the coordinator had shown, and its losses are those of a job that nobody disturbed.
// `tests/long.sh power` does it a hundred times.
#include <signal.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/checkpoint/directory.h"
#include "gtest/gtest.h"
#include "tests/fault/small_job.h"
#include "tests/testing/cluster.h"
#include "tests/testing/losing_disk.h"

namespace takt {
namespace {

using testing::Cluster;
using testing::LosingDisk;
using testing::SmallJob;

constexpr std::uint32_t kSeed = 7;
constexpr int kMebibytes = 256;
// A save takes about as long as the steps between two, so it is under way most of the time.
constexpr int kSteps = 400, kSaveEvery = 4;
constexpr int kLongestWaitMillis = 200;

SmallJob JobNamed(const std::string& name) {
  return {.name = name,
          .steps = kSteps,
          .save_every = kSaveEvery,
          .checkpoints = "disk/" + name,
          .more = ", keep: 2, in_memory: off"};
}

// Returns the newest step whose files all verify; 0: there is none.
std::int64_t NewestWholeStep(const std::string& directory) {
  const auto steps = checkpoint::ListSteps(directory);
  if (!steps.ok()) return 0;
  for (const checkpoint::ListedStep& step : *steps) {
    if (step.state != checkpoint::StepState::kComplete) continue;
    const auto files = checkpoint::StepFiles::Open(absl::StrCat(directory, "/", step.name));
    if (files.ok() && files->VerifyAll().ok()) return step.step.value();
  }
  return 0;
}

// The state of the coordinator and the checkpoints are on a disk of their own. Where none can be
// mounted, "power cut" means that everything is killed at once.
class PowerCut : public ::testing::Test {
 protected:
  PowerCut() {
    cluster_.Kill(cluster_.coordinator());
    const std::string directory = cluster_.directory() + "/disk";
    std::filesystem::create_directory(directory);
    absl::Status status = testing::EnterOwnMounts();
    if (status.ok()) {
      auto disk = LosingDisk::Create(cluster_.directory() + "/disk.ext4", directory, kMebibytes);
      status = disk.status();
      if (disk.ok()) disk_ = *std::move(disk);
    }
    if (disk_ == nullptr)
      std::cerr << "no disk loses anything here, so all are killed only: " << status << std::endl;
    Start();
  }

  void Start() {
    cluster_.StartCoordinator("disk/state");
    for (const char* const name : kWorkers) cluster_.StartWorker(name);
  }

  void CutPower() {
    const testing::DiskUsers users = {.stop =
                                          [this] {
                                            cluster_.coordinator().Signal(SIGSTOP);
                                            for (const char* const name : kWorkers)
                                              cluster_.worker(name).Signal(SIGSTOP);
                                          },
                                      .end =
                                          [this] {
                                            cluster_.Kill(cluster_.coordinator());
                                            for (const char* const name : kWorkers)
                                              cluster_.Kill(cluster_.worker(name));
                                          }};
    if (disk_ != nullptr) {
      const absl::Status status = disk_->CutPower(users);
      ASSERT_TRUE(status.ok()) << status;
    } else {
      users.stop();
      users.end();
    }
  }

  void ExpectAsUndisturbed(const std::string& name) {
    static const std::vector<double> undisturbed = testing::UndisturbedLosses(
        {.steps = kSteps, .save_every = kSaveEvery, .more = ", in_memory: off"});
    const v1::Job job = cluster_.AwaitEnd(name);
    EXPECT_EQ(job.state(), v1::JOB_STATE_SUCCEEDED) << job.reason();
    EXPECT_EQ(job.checkpoint().step(), kSteps);
    EXPECT_EQ(testing::LossesOf(cluster_, name), undisturbed);
  }

  // Lets the job save once more, cuts the power, and waits until the job trains again.
  void Round(const std::string& name) {
    const std::int64_t saved = cluster_.Job(name).checkpoint().step();
    cluster_.AwaitJob(name, [&](const v1::Job& job) {
      return job.checkpoint().step() > saved || testing::HasEnded(job);
    });
    absl::SleepFor(absl::Milliseconds(random_() % kLongestWaitMillis));
    const v1::Job before = cluster_.Job(name);
    ASSERT_NO_FATAL_FAILURE(CutPower());
    EXPECT_GE(NewestWholeStep(absl::StrCat(cluster_.directory(), "/disk/", name)),
              before.checkpoint().step());
    Start();
    const v1::Job after = cluster_.AwaitJob(name, [&](const v1::Job& job) {
      const bool trains_again =
          job.generation() > before.generation() && job.state() == v1::JOB_STATE_RUNNING;
      return trains_again || testing::HasEnded(job);
    });
    EXPECT_NE(after.state(), v1::JOB_STATE_FAILED) << after.reason();
    if (!testing::HasEnded(after)) {
      EXPECT_GE(after.resumed_step(), before.checkpoint().step());
    }
  }

  void RunRounds(int rounds) {
    std::string name;
    int jobs = 0;
    for (int round = 0; round < rounds && !HasFailure(); ++round) {
      SCOPED_TRACE(absl::StrCat("round ", round, " of seed ", kSeed));
      if (name.empty() || testing::HasEnded(cluster_.Job(name))) {
        if (!name.empty()) ExpectAsUndisturbed(name);
        name = absl::StrCat("j", ++jobs);
        cluster_.Submit(JobNamed(name).Yaml());
      }
      Round(name);
    }
    ExpectAsUndisturbed(name);
    cluster_.ExpectNothingLost();
    const std::string how = disk_ != nullptr ? disk_->last_cut() : "all were only killed";
    std::cout << rounds << " power cuts: " << how << std::endl;
    RecordProperty("power_cut", how);
  }

  static constexpr std::array kWorkers = {"w0", "w1", "w2"};  // one may be quarantined
  Cluster cluster_{0};
  std::unique_ptr<LosingDisk> disk_;
  std::mt19937 random_{kSeed};
};

TEST_F(PowerCut, AJobGoesOnFromACompleteCheckpoint) { RunRounds(3); }

TEST_F(PowerCut, DISABLED_AHundredTimes) { RunRounds(100); }

}  // namespace
}  // namespace takt
