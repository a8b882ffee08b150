// SPDX-License-Identifier: Apache-2.0
#include "cli/terminal/live_screen.h"

#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::cli {
namespace {

constexpr std::string_view kEnter = "\x1b[?1049h\x1b[?25l\x1b[2J";
constexpr std::string_view kLeave = "\x1b[?25h\x1b[?1049l";

// Signals that end the process at once unless a later handler takes them, and SIGTSTP (Ctrl-Z),
// after which the process may go on.
constexpr std::array kSignals = {SIGABRT, SIGBUS,  SIGFPE,  SIGHUP,  SIGILL,
                                 SIGINT,  SIGQUIT, SIGSEGV, SIGTERM, SIGTSTP};

// The descriptor of the object that exists; -1: none.
std::atomic<int> screen_fd = -1;
std::array<struct sigaction, kSignals.size()> before;

// Waits for room if a write failed only because there was none, and returns whether there is now.
// Another program may have set the terminal to not block.
bool AwaitRoom(int fd) {
  if (errno != EAGAIN) return false;
  pollfd room{.fd = fd, .events = POLLOUT, .revents = 0};
  return poll(&room, 1, -1) >= 0 || errno == EINTR;
}

// Returns false if the terminal is gone.
bool WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && (errno == EINTR || AwaitRoom(fd))) continue;
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

void Install(int signal, struct sigaction* old);

// Uses only what a signal handler may call. The signal then has its former effect.
void OnSignal(int signal) {
  const int error = errno;
  WriteAll(screen_fd, kLeave);
  struct sigaction by_default {};
  by_default.sa_handler = SIG_DFL;
  sigaction(signal, &by_default, nullptr);
  sigset_t this_one;
  sigemptyset(&this_one);
  sigaddset(&this_one, signal);
  raise(signal);
  pthread_sigmask(SIG_UNBLOCK, &this_one, nullptr);
  // The process was stopped and now goes on.
  Install(signal, nullptr);
  WriteAll(screen_fd, kEnter);
  errno = error;
}

void Install(int signal, struct sigaction* old) {
  struct sigaction action {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
  sigaction(signal, &action, old);
}

}  // namespace

LiveScreen::LiveScreen(int fd) : fd_(fd) {
  TAKT_CHECK(screen_fd == -1);
  screen_fd = fd;
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    Install(kSignals[i], &before[i]);
    // An ignored signal stays ignored, as with nohup.
    if (before[i].sa_handler == SIG_IGN) sigaction(kSignals[i], &before[i], nullptr);
  }
  WriteAll(fd_, kEnter);
}

LiveScreen::~LiveScreen() {
  WriteAll(fd_, kLeave);
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before[i], nullptr);
  screen_fd = -1;
}

LiveScreen::Size LiveScreen::size() const {
  winsize size{};
  if (ioctl(fd_, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return {};
  return {.columns = size.ws_col, .rows = size.ws_row};
}

bool LiveScreen::Draw(std::vector<std::string> lines, Size size) {
  lines.resize(static_cast<std::size_t>(size.rows));  // empty lines erase what was there
  return WriteAll(fd_, FrameOf(lines));
}

std::string FrameOf(const std::vector<std::string>& lines) {
  std::string frame;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    // Erases first, because a line that fills the last column leaves the cursor on it.
    absl::StrAppend(&frame, "\x1b[", i + 1, ";1H\x1b[K", lines[i]);
  }
  return frame;
}

}  // namespace takt::cli
