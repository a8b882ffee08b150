// SPDX-License-Identifier: Apache-2.0
// Real disks that are full, that refuse, and that lose what was not synced.
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/checkpoint/layout.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/checkpoint_job.h"
#include "tests/testing/losing_disk.h"
#include "worker/checkpoint/commit.h"

namespace takt::worker_checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr int kNotPermittedCode = 77;

#define REQUIRE_OR_FAIL(condition) \
  if (!(condition)) return absl::InternalError("not so: " #condition)

class RealDisk : public ::testing::Test {
 protected:
  // Runs `work` in a process of its own, whose mounts and limits end with it. kUnavailable: this
  // machine does not permit what it needs.
  void RunApart(const std::function<absl::Status()>& work) {
    const pid_t pid = fork();
    if (pid == 0) {
      const absl::Status status = work();
      if (!status.ok()) std::cerr << status << std::endl;
      _exit(status.ok() ? 0 : absl::IsUnavailable(status) ? kNotPermittedCode : 1);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    ASSERT_TRUE(WIFEXITED(status));
    if (WEXITSTATUS(status) == kNotPermittedCode) GTEST_SKIP() << "see above";
    EXPECT_EQ(WEXITSTATUS(status), 0);
  }

  absl::Status Save(int step, int keep = 100) const {
    return job_.Save(*disk_, directory_.path(), StepId(step), keep);
  }
  StepId Newest() const { return job_.Newest(directory_.path()).step.value_or(StepId()); }
  absl::Status CheckLatest() const {
    return job_.Check(fs::canonical(directory_.path() + "/latest").string());
  }

  const testing::TemporaryDirectory directory_;
  const testing::CheckpointJob job_;
  const std::unique_ptr<FileSystem> disk_ = CreatePosixFileSystem();
};

TEST_F(RealDisk, FullOneFailsTheCheckpointAndKeepsTheOthers) {
  RunApart([&]() -> absl::Status {
    RETURN_IF_ERROR(testing::EnterOwnMounts());
    if (mount("tmpfs", directory_.path().c_str(), "tmpfs", 0, "size=256k") != 0)
      return absl::UnavailableError("may not mount a small disk");
    int step = 1;
    absl::Status saved = Save(step);
    while (saved.ok()) saved = Save(++step);
    std::cerr << "step " << step << ": " << saved << std::endl;
    REQUIRE_OR_FAIL(absl::IsResourceExhausted(saved));
    REQUIRE_OR_FAIL(step > 2 && Newest() == StepId(step - 1));
    RETURN_IF_ERROR(CheckLatest());
    // Room again.
    RETURN_IF_ERROR(
        RemovePartial(*disk_, directory_.path(), StepId(step), "small-gpt", Generation(1)));
    fs::remove_all(directory_.path() + "/step-00000001");
    RETURN_IF_ERROR(Save(step));
    REQUIRE_OR_FAIL(Newest() == StepId(step));
    return CheckLatest();
  });
}

TEST_F(RealDisk, LimitOnTheSizeOfFilesFailsTheCheckpointAndKeepsTheOthers) {
  RunApart([&]() -> absl::Status {
    RETURN_IF_ERROR(Save(1));
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit small = {1000, RLIM_INFINITY}, none = {RLIM_INFINITY, RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE, &small);
    const absl::Status saved = Save(2);
    setrlimit(RLIMIT_FSIZE, &none);
    REQUIRE_OR_FAIL(!saved.ok());
    REQUIRE_OR_FAIL(Newest() == StepId(1));
    RETURN_IF_ERROR(CheckLatest());
    RETURN_IF_ERROR(Save(2));
    REQUIRE_OR_FAIL(Newest() == StepId(2));
    return absl::OkStatus();
  });
}

TEST_F(RealDisk, WhatWasCommittedSurvivesAPowerCut) {
  RunApart([&]() -> absl::Status {
    RETURN_IF_ERROR(testing::EnterOwnMounts());
    ASSIGN_OR_RETURN(const auto losing, testing::LosingDisk::Create(directory_.path() + ".ext4",
                                                                    directory_.path(), 16));
    RETURN_IF_ERROR(EnsureDirectory(*disk_, directory_.path() + "/jobs/a"));
    const std::string path = directory_.path() + "/jobs/a";
    RETURN_IF_ERROR(job_.Save(*disk_, path, StepId(1), 1));
    RETURN_IF_ERROR(job_.Save(*disk_, path, StepId(2), 1));
    std::ofstream(path + "/never-synced") << "x";
    RETURN_IF_ERROR(losing->CutPower({}));
    REQUIRE_OR_FAIL(!fs::exists(path + "/never-synced"));  // so the cut did lose something
    REQUIRE_OR_FAIL(job_.Newest(path).step == StepId(2));
    REQUIRE_OR_FAIL(fs::read_symlink(path + "/latest") == "step-00000002");
    return job_.Check(fs::canonical(path + "/latest").string());
  });
}

}  // namespace
}  // namespace takt::worker_checkpoint
