// SPDX-License-Identifier: Apache-2.0
// `takt watch` on a pseudo-terminal, against a coordinator that says what the test wants.
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/synchronization/notification.h"
#include "cli/testing/fake_coordinator.h"
#include "gmock/gmock.h"
#include "tests/integration/command.h"

namespace takt::integration {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

constexpr char kEnter[] = "\x1b[?1049h";
constexpr char kLeave[] = "\x1b[?1049l";
constexpr absl::Duration kPatience = absl::Seconds(60);

// A program on a terminal of its own.
class OnTerminal final {
 public:
  OnTerminal(std::vector<std::string> argv, unsigned short columns, unsigned short rows) {
    std::vector<char*> arguments;
    for (std::string& argument : argv) arguments.push_back(argument.data());
    arguments.push_back(nullptr);
    const winsize size{.ws_row = rows, .ws_col = columns};
    pid_ = forkpty(&terminal_, nullptr, nullptr, &size);
    if (pid_ == 0) {
      execv(arguments[0], arguments.data());
      _exit(127);
    }
    TAKT_CHECK(pid_ > 0);
  }
  ~OnTerminal() {
    if (pid_ > 0) kill(pid_, SIGKILL);
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
    if (terminal_ >= 0) close(terminal_);
  }
  OnTerminal(const OnTerminal&) = delete;

  // Until it has written `text` after what was waited for before; false: it ended without.
  bool WaitForText(const std::string& text) {
    const absl::Time deadline = absl::Now() + kPatience;
    while (true) {
      const std::size_t found = written_.find(text, seen_);
      if (found != std::string::npos) {
        seen_ = found + text.size();
        return true;
      }
      if (absl::Now() > deadline || !Read()) return false;
    }
  }
  void Resize(unsigned short columns, unsigned short rows) const {
    const winsize size{.ws_row = rows, .ws_col = columns};
    EXPECT_EQ(ioctl(terminal_, TIOCSWINSZ, &size), 0);
  }
  void Type(const std::string& keys) const {
    EXPECT_EQ(write(terminal_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  // The terminal is gone.
  void HangUp() { close(std::exchange(terminal_, -1)); }
  // All that it wrote; `status`: its exit status, or -1.
  std::string End(int& status) {
    while (Read()) {
    }
    int wait_status = 0;
    TAKT_CHECK(waitpid(std::exchange(pid_, -1), &wait_status, 0) > 0);
    status = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : -1;
    return written_;
  }

 private:
  // False: nobody will write more.
  bool Read() {
    if (terminal_ < 0) return false;
    pollfd readable{.fd = terminal_, .events = POLLIN};
    if (poll(&readable, 1, 1000) == 0) return true;
    char buffer[4096];
    const ssize_t got = read(terminal_, buffer, sizeof buffer);
    if (got <= 0) return false;
    written_.append(buffer, static_cast<std::size_t>(got));
    return true;
  }

  pid_t pid_ = -1;
  int terminal_ = -1;
  std::string written_;
  std::size_t seen_ = 0;
};

class WatchTest : public testing::Test {
 protected:
  WatchTest() : coordinator_(std::make_unique<cli::FakeCoordinator>()) {
    job_.set_name("j");
    job_.set_state(v1::JOB_STATE_RUNNING);
    job_.set_steps(40);
    job_.set_schedule("1f1b");
    job_.add_ranks()->set_worker("w0");
    job_.add_stages();
    coordinator_->get = [this](auto&, const v1::GetJobRequest& request,
                               v1::GetJobResponse& response) {
      if (request.name() != job_.name())
        return grpc::Status(grpc::StatusCode::NOT_FOUND, "no job named x");
      *response.mutable_job() = job_;
      return grpc::Status::OK;
    };
    // The job, 31 steps and a split; then nothing until the test lets the job end.
    coordinator_->watch = [this](grpc::ServerContext& context, auto& request, auto& writer) {
      if (request.name() != job_.name())
        return grpc::Status(grpc::StatusCode::NOT_FOUND, "no job named x");
      v1::WatchJobResponse event;
      *event.mutable_job() = job_;
      writer.Write(event);
      for (int step = 1; step <= 31; ++step) {
        event.mutable_step()->set_step(step);
        event.mutable_step()->set_loss(100.0 / step);
        event.mutable_step()->set_step_seconds(2);
        writer.Write(event);
      }
      event.mutable_split()->set_step(30);
      event.mutable_split()->set_step_seconds(2);
      event.mutable_split()->set_compute(1.5);
      writer.Write(event);
      while (!end_.WaitForNotificationWithTimeout(absl::Milliseconds(20))) {
        if (context.IsCancelled()) return grpc::Status::CANCELLED;
      }
      job_.set_state(v1::JOB_STATE_SUCCEEDED);
      *event.mutable_job() = job_;
      writer.Write(event);
      return grpc::Status::OK;
    };
    coordinator_->workers = [](auto&, auto&, v1::ListWorkersResponse& response) {
      response.add_workers()->set_name("w0");
      response.mutable_workers(0)->set_state(v1::WORKER_STATE_LOST);
      return grpc::Status::OK;
    };
  }

  std::unique_ptr<OnTerminal> Watch(const std::string& name, unsigned short columns = 80,
                                    unsigned short rows = 30, const std::string& term = "xterm") {
    return std::make_unique<OnTerminal>(
        std::vector<std::string>{"/usr/bin/env", "TERM=" + term, "LC_ALL=C", "NO_COLOR=1",
                                 absl::StrCat(TAKT_BINARY_DIR, "/takt"), "--coordinator",
                                 coordinator_->address(), "watch", name},
        columns, rows);
  }

  v1::Job job_;
  absl::Notification end_;
  std::unique_ptr<cli::FakeCoordinator> coordinator_;  // last: its handlers use the others
};

TEST_F(WatchTest, IsLiveUntilTheJobEndsAndLeavesItsLastWord) {
  const auto watch = Watch("j");
  EXPECT_TRUE(watch->WaitForText(kEnter));
  EXPECT_TRUE(watch->WaitForText("31/40 77.5%  ETA 18 s"));
  EXPECT_TRUE(watch->WaitForText("loss 3.2258"));
  EXPECT_TRUE(watch->WaitForText("compute        75.0%"));
  EXPECT_TRUE(watch->WaitForText("w0 LOST"));
  watch->Resize(60, 8);
  EXPECT_TRUE(watch->WaitForText("compute 75.0% imbalance 0.0%"));  // no room for a bar each
  end_.Notify();
  int status = 0;
  const std::string text = watch->End(status);
  EXPECT_EQ(status, 0);
  const std::string after = text.substr(text.find(kLeave));
  EXPECT_THAT(after, AllOf(HasSubstr("step 31/40  loss 3.22581"), EndsWith("j: SUCCEEDED\r\n"),
                           Not(HasSubstr("\x1b[K"))));
}

TEST_F(WatchTest, CtrlCPutsTheScreenBackAndLeavesTheJobAlone) {
  const auto watch = Watch("j", 10, 6);
  EXPECT_TRUE(watch->WaitForText("31/40"));
  watch->Type("\x03");
  int status = 0;
  const std::string text = watch->End(status);
  EXPECT_EQ(status, 6);
  EXPECT_THAT(text.substr(text.find(kLeave)),
              AllOf(HasSubstr("step 31/40  loss"), HasSubstr("j goes on")));
}

TEST_F(WatchTest, ATerminalThatGoesAwayLeavesTheJobAlone) {
  // With nohup it is not the signal that ends it.
  OnTerminal watch({"/bin/sh", "-c", "trap '' HUP; exec \"$@\"", "sh", "/usr/bin/env", "TERM=xterm",
                    absl::StrCat(TAKT_BINARY_DIR, "/takt"), "--coordinator",
                    coordinator_->address(), "watch", "j"},
                   80, 30);
  EXPECT_TRUE(watch.WaitForText("31/40"));
  watch.HangUp();
  int status = 0;
  watch.End(status);
  EXPECT_EQ(status, 6);
}

TEST_F(WatchTest, SaysThatTheCoordinatorIsAwayAndGoesOn) {
  const auto watch = Watch("j");
  EXPECT_TRUE(watch->WaitForText("31/40"));
  coordinator_.reset();
  EXPECT_TRUE(watch->WaitForText("the coordinator is away"));
  EXPECT_TRUE(watch->WaitForText("31/40"));
  watch->Type("\x03");
  int status = 0;
  EXPECT_THAT(watch->End(status), HasSubstr(kLeave));
  EXPECT_EQ(status, 6);
}

TEST_F(WatchTest, AJobThatIsNotThereNeedsNoScreen) {
  const auto watch = Watch("x");
  int status = 0;
  EXPECT_THAT(watch->End(status), AllOf(HasSubstr("no job named x"), Not(HasSubstr(kEnter))));
  EXPECT_EQ(status, 4);
}

TEST_F(WatchTest, ATerminalThatCannotMoveItsCursorGetsLines) {
  end_.Notify();
  const auto watch = Watch("j", 80, 30, "dumb");
  int status = 0;
  EXPECT_THAT(watch->End(status), AllOf(HasSubstr("step 1/40"), Not(HasSubstr("\x1b["))));
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace takt::integration
