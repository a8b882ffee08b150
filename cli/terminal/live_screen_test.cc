// SPDX-License-Identifier: Apache-2.0
// Tests on a pseudo-terminal which bytes a terminal receives.
#include "cli/terminal/live_screen.h"

#include <fcntl.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::cli {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

constexpr char kEnter[] = "\x1b[?1049h\x1b[?25l";
constexpr char kLeave[] = "\x1b[?25h\x1b[?1049l";

class LiveScreenTest : public testing::Test {
 protected:
  LiveScreenTest() { EXPECT_EQ(openpty(&ours_, &terminal_, nullptr, nullptr, nullptr), 0); }
  ~LiveScreenTest() override {
    close(ours_);
    if (terminal_ >= 0) close(terminal_);
  }
  // Returns everything that was written, when no process can write any more.
  std::string ReadAll() {
    close(std::exchange(terminal_, -1));
    std::string text;
    char buffer[4096];
    for (ssize_t got = 0; (got = read(ours_, buffer, sizeof buffer)) > 0;) text.append(buffer, got);
    return text;
  }
  void Resize(unsigned short columns, unsigned short rows) const {
    const winsize size{.ws_row = rows, .ws_col = columns};
    EXPECT_EQ(ioctl(ours_, TIOCSWINSZ, &size), 0);
  }
  // Runs a child that has the screen and then ends by `end`.
  int StatusOfChild(void (*end)()) const {
    const pid_t child = fork();
    if (child == 0) {
      const LiveScreen screen(terminal_);
      end();
      _exit(0);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return status;
  }

  int ours_ = -1, terminal_ = -1;
};

TEST_F(LiveScreenTest, TheScreenBeforeIsBackWhenItIsGone) {
  {
    LiveScreen screen(terminal_);
    EXPECT_TRUE(screen.Draw({"one", "two"}, {.columns = 80, .rows = 3}));
  }
  const std::string text = ReadAll();
  EXPECT_THAT(text, StartsWith(kEnter));
  EXPECT_THAT(text, HasSubstr("\x1b[1;1H\x1b[Kone\x1b[2;1H\x1b[Ktwo\x1b[3;1H\x1b[K"));
  EXPECT_THAT(text, EndsWith(kLeave));
}

TEST_F(LiveScreenTest, TheScreenBeforeIsBackAfterACrashAndTheSignalIsKept) {
  for (const auto& [end, signal] : {std::pair<void (*)(), int>{[] { abort(); }, SIGABRT},
                                    {[] { raise(SIGSEGV); }, SIGSEGV},
                                    {[] { raise(SIGHUP); }, SIGHUP},
                                    {[] { raise(SIGINT); }, SIGINT}}) {
    const int status = StatusOfChild(end);
    EXPECT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(WTERMSIG(status), signal);
  }
  const std::string text = ReadAll();
  EXPECT_THAT(text, EndsWith(kLeave));
  EXPECT_EQ(std::string(text, text.find(kLeave) + sizeof kLeave - 1, sizeof kEnter - 1), kEnter);
}

TEST_F(LiveScreenTest, StoppedItGivesTheScreenBackUntilItGoesOn) {
  const pid_t child = fork();
  if (child == 0) {
    setpgid(0, 0);  // otherwise the group is orphaned and the stop is ignored
    {
      const LiveScreen screen(terminal_);
      raise(SIGTSTP);
    }
    _exit(7);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status));
  EXPECT_EQ(kill(child, SIGCONT), 0);
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 7);
  EXPECT_THAT(ReadAll(), HasSubstr(std::string(kLeave) + kEnter));
}

TEST_F(LiveScreenTest, ATerminalThatDoesNotBlockIsWaitedFor) {
  ASSERT_EQ(fcntl(terminal_, F_SETFL, O_NONBLOCK), 0);
  std::thread reader([this] {
    char buffer[4096];
    while (read(ours_, buffer, sizeof buffer) > 0) continue;
  });
  {
    LiveScreen screen(terminal_);
    const std::vector<std::string> lines(100, std::string(10'000, 'x'));  // far more than it holds
    EXPECT_TRUE(screen.Draw(lines, {.columns = 10'000, .rows = 100}));
  }
  close(std::exchange(terminal_, -1));
  reader.join();
}

TEST_F(LiveScreenTest, ItsSizeIsThatOfTheWindowNow) {
  LiveScreen screen(terminal_);
  Resize(10, 5);
  EXPECT_EQ(screen.size().columns, 10);
  EXPECT_EQ(screen.size().rows, 5);
  Resize(200, 50);
  EXPECT_EQ(screen.size().columns, 200);
  Resize(0, 0);  // a serial line
  EXPECT_EQ(screen.size().columns, 80);
}

}  // namespace
}  // namespace takt::cli
