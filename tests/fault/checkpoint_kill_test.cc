// SPDX-License-Identifier: Apache-2.0
// A process that saves and commits a checkpoint is killed after every system call. (Before one is
// after the last: between the two nothing reaches the disk.)
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/layout.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/checkpoint_job.h"
#include "worker/checkpoint/commit.h"

namespace takt::worker_checkpoint {
namespace {

namespace fs = std::filesystem;

enum class End { kFinished, kFailed, kKilled, kNotTraced };

constexpr int kNotTracedCode = 77;

// Runs `work` in a process of its own that is killed when its call number `call`, from 1, returns.
End RunUntil(int call, const std::function<absl::Status()>& work) {
  const pid_t pid = fork();
  if (pid == 0) {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(kNotTracedCode);
    raise(SIGSTOP);
    _exit(work().ok() ? 0 : 1);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  if (!WIFSTOPPED(status)) return End::kNotTraced;
  ptrace(PTRACE_SETOPTIONS, pid, nullptr, PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD);
  constexpr int kSystemCall = SIGTRAP | 0x80;
  for (int count = 0;;) {
    ptrace(PTRACE_SYSCALL, pid, nullptr, nullptr);
    waitpid(pid, &status, 0);
    if (WIFEXITED(status)) return WEXITSTATUS(status) == 0 ? End::kFinished : End::kFailed;
    // It stops on entry and on return.
    if (!WIFSTOPPED(status) || WSTOPSIG(status) != kSystemCall || ++count < 2 * call) continue;
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return End::kKilled;
  }
}

class KilledSaver : public ::testing::Test {
 protected:
  // Step 1 is there; `prepare` may add more. Step 2, after which step 1 is to go, is being saved by
  // a process that is killed. Returns how it ended.
  End KillAt(int call, const std::function<void(const std::string&)>& prepare) {
    const testing::TemporaryDirectory directory;
    const std::string& path = directory.path();
    EXPECT_TRUE(job_.Save(*disk_, path, StepId(1), 1).ok());
    prepare(path);
    const End end = RunUntil(call, [&] { return job_.Save(*disk_, path, StepId(2), 1); });

    EXPECT_TRUE(job_.Check(fs::canonical(path + "/latest").string()).ok());
    const checkpoint::ChosenStep newest = job_.Newest(path);
    EXPECT_TRUE(newest.step.has_value());
    if (end == End::kFinished) {
      EXPECT_EQ(newest.step, StepId(2));
    }
    ExpectNextGenerationSaves(path);
    return end;
  }

  void ExpectNextGenerationSaves(const std::string& path) {
    testing::CheckpointJob next;
    next.generation = Generation(2);
    EXPECT_TRUE(RemoveStale(*disk_, path, "small-gpt", Generation(2)).ok());
    EXPECT_TRUE(next.Save(*disk_, path, StepId(2), 1).ok());
    EXPECT_EQ(next.Newest(path).step, StepId(2));
    EXPECT_EQ(fs::read_symlink(path + "/latest"), "step-00000002");
    const std::vector<checkpoint::ListedStep> steps = checkpoint::ListSteps(path).value();
    for (const checkpoint::ListedStep& step : steps) {
      EXPECT_NE(step.state, checkpoint::StepState::kPartial) << step.name;
    }
  }

  void KillEverywhere(const std::function<void(const std::string&)>& prepare) {
    int call = 1;
    End end = End::kKilled;
    for (; end == End::kKilled && !HasFailure(); ++call) {
      SCOPED_TRACE(absl::StrCat("call ", call));
      end = KillAt(call, prepare);
      if (end == End::kNotTraced) GTEST_SKIP() << "this machine lets no process trace its child";
    }
    EXPECT_EQ(end, End::kFinished);
    // Fewer would mean that the tracer looked elsewhere: ten files are created, written, synced and
    // closed.
    EXPECT_GT(call, 100);
    RecordProperty("calls", call - 1);
  }

  const testing::CheckpointJob job_;
  const std::unique_ptr<FileSystem> disk_ = CreatePosixFileSystem();
};

TEST_F(KilledSaver, LeavesLatestCompleteAtEverySystemCall) {
  KillEverywhere([](const std::string&) {});
}

// A damaged step 2, skipped when the job resumed from step 1, has to be moved aside.
TEST_F(KilledSaver, LeavesLatestCompleteWhenSomethingIsInTheWay) {
  KillEverywhere([](const std::string& path) {
    fs::create_directory(path + "/step-00000002");
    std::ofstream(path + "/step-00000002/" + checkpoint::kManifestFile) << "{}";
  });
}

// A person resumed step 1 though step 2 was good: `latest` names what has to be moved aside.
TEST_F(KilledSaver, LeavesLatestCompleteWhenWhatItNamesIsInTheWay) {
  KillEverywhere([&](const std::string& path) {
    testing::CheckpointJob earlier;
    earlier.generation = Generation(0);
    ASSERT_TRUE(earlier.Save(*disk_, path, StepId(2), 2).ok());
  });
}

}  // namespace
}  // namespace takt::worker_checkpoint
