// SPDX-License-Identifier: Apache-2.0
#include "cli/local/process.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "absl/time/clock.h"
#include "cli/testing/test_directory.h"
#include "gtest/gtest.h"

namespace takt::cli {
namespace {

class ProcessTest : public testing::Test {
 protected:
  absl::StatusOr<Process> Run(const std::string& script) {
    return Process::Spawn({.name = "child", .argv = {"/bin/sh", "-c", script}, .log_path = Log()});
  }
  std::string Path(const std::string& name) const { return directory_.Path(name); }
  std::string Log() const { return Path("log"); }
  std::string LogText() const {
    std::ifstream file(Log());
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }

 private:
  const TestDirectory directory_;
};

TEST_F(ProcessTest, WritesItsLogAndTellsHowItEnded) {
  auto process = Run("echo out; echo err >&2; exit 3");
  ASSERT_TRUE(process.ok()) << process.status();
  ASSERT_TRUE(process->WaitUntil(absl::InfiniteFuture()));
  EXPECT_EQ(process->EndText(), "exit status 3");
  EXPECT_EQ(LogText(), "out\nerr\n");
}

TEST_F(ProcessTest, ThatCannotStartIsAnError) {
  const auto process =
      Process::Spawn({.name = "child", .argv = {"/nonexistent/program"}, .log_path = Log()});
  EXPECT_EQ(process.status().message(),
            "cannot start child (/nonexistent/program): No such file or directory");
}

TEST_F(ProcessTest, RunsWithoutBlockedSignalsAndInAGroupOfItsOwn) {
  sigset_t signals, before;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, &before);
  auto process = Run("exec sleep 1000");
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ASSERT_TRUE(process.ok());
  EXPECT_EQ(getpgid(process->pid()), process->pid());
  process->Signal(SIGTERM);
  ASSERT_TRUE(process->WaitUntil(absl::InfiniteFuture()));
  EXPECT_EQ(process->EndText(), "signal 15 (Terminated)");
}

TEST_F(ProcessTest, StopAllKillsWhatIgnoresSigterm) {
  // The pipe tells that the trap is set.
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  auto process = Process::Spawn({.name = "child",
                                 .argv = {"/bin/sh", "-c",
                                          "trap '' TERM; echo >&" + std::to_string(ready[1]) +
                                              "; while :; do sleep 1000; done"},
                                 .log_path = Log(),
                                 .inherited_fd = ready[1]});
  ASSERT_TRUE(process.ok());
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  StopAll({&*process}, absl::Milliseconds(50));
  EXPECT_EQ(process->EndText(), "signal 9 (Killed)");
  close(ready[0]);
  close(ready[1]);
}

TEST_F(ProcessTest, IsFoundByItsPidFileUntilItEnds) {
  auto process = Run("exec sleep 1000");
  ASSERT_TRUE(process.ok());
  ASSERT_TRUE(process->WritePidFile(Path("pid")).ok());
  auto found = Process::FromPidFile("child", Path("pid"));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->pid(), process->pid());
  StopAll({&*process}, absl::Seconds(5));
  EXPECT_FALSE(Process::FromPidFile("child", Path("pid")).has_value());
}

TEST_F(ProcessTest, AReusedPidIsNotTakenForOurs) {
  // The file has the pid of this process, but another start.
  std::ofstream(Path("pid")) << getpid() << " 1\n";
  EXPECT_FALSE(Process::FromPidFile("child", Path("pid")).has_value());
}

TEST_F(ProcessTest, DiesWithTheProcessThatSpawnedIt) {
  // A parent spawns a child, reports its pid and ends.
  int told[2];
  ASSERT_EQ(pipe(told), 0);
  const pid_t parent = fork();
  if (parent == 0) {
    auto process = Run("exec sleep 1000");
    const pid_t pid = process.ok() ? process->pid() : -1;
    _exit(write(told[1], &pid, sizeof(pid)) == sizeof(pid) ? 0 : 1);
  }
  pid_t child = -1;
  ASSERT_EQ(read(told[0], &child, sizeof(child)), static_cast<ssize_t>(sizeof(child)));
  ASSERT_GT(child, 0);
  ASSERT_EQ(waitpid(parent, nullptr, 0), parent);
  // The child is killed, and the process that adopted it reaps it. ESRCH and a zombie both mean
  // that the child does not run.
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  const auto runs = [child] {
    std::ifstream stat("/proc/" + std::to_string(child) + "/stat");
    std::string pid, name, state;
    return static_cast<bool>(stat >> pid >> name >> state) && state != "Z" && state != "X";
  };
  while (runs() && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_FALSE(runs());
  close(told[0]);
  close(told[1]);
}

}  // namespace
}  // namespace takt::cli
