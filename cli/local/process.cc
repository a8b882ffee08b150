// SPDX-License-Identifier: Apache-2.0
#include "cli/local/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status.h"

namespace takt::cli {
namespace {

FileDescriptor OpenPidFd(pid_t pid) {
  return FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

// Field 22 of /proc/PID/stat: clock ticks from boot to the start of the process; 0 if there is no
// such process.
std::uint64_t StartTicks(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto name_end = text.rfind(')');  // the name (field 2) may hold blanks and parentheses
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(text.substr(name_end + 1));
  std::string skipped;
  for (int field = 3; field < 22; ++field) fields >> skipped;
  std::uint64_t ticks = 0;
  fields >> ticks;
  return ticks;
}

// The child needs these. They are made before the fork, since only async-signal-safe calls are
// allowed after it.
struct ChildPlan {
  std::vector<char*> argv;
  const char* log_path;
  bool die_with_parent;
  int inherited_fd;
  int error_fd;
  pid_t parent;
};

[[noreturn]] void RunChild(const ChildPlan& plan) {
  const auto fail = [&plan] {
    const int error = errno;
    [[maybe_unused]] const auto written = write(plan.error_fd, &error, sizeof(error));
    _exit(127);
  };
  if (plan.die_with_parent) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != plan.parent) _exit(127);  // the parent died before the line above
  } else {
    setsid();
  }
  const int null_fd = open("/dev/null", O_RDONLY);
  const int log_fd = open(plan.log_path, O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (null_fd < 0 || log_fd < 0) fail();
  dup2(null_fd, STDIN_FILENO);
  dup2(log_fd, STDOUT_FILENO);
  dup2(log_fd, STDERR_FILENO);
  close(null_fd);
  close(log_fd);
  if (plan.inherited_fd >= 0) fcntl(plan.inherited_fd, F_SETFD, 0);
  if (chdir("/") != 0) fail();
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGCHLD, SIGALRM}) {
    ::signal(signal, SIG_DFL);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execv(plan.argv[0], plan.argv.data());
  fail();
  _exit(127);
}

}  // namespace

absl::StatusOr<Process> Process::Spawn(const SpawnOptions& options) {
  int error_pipe[2];
  if (pipe2(error_pipe, O_CLOEXEC) != 0) {
    return absl::InternalError(absl::StrCat("pipe: ", std::strerror(errno)));
  }
  ChildPlan plan{.log_path = options.log_path.c_str(),
                 .die_with_parent = options.die_with_parent,
                 .inherited_fd = options.inherited_fd,
                 .error_fd = error_pipe[1],
                 .parent = getpid()};
  for (const std::string& argument : options.argv) {
    plan.argv.push_back(const_cast<char*>(argument.c_str()));
  }
  plan.argv.push_back(nullptr);
  const pid_t pid = fork();
  if (pid == 0) RunChild(plan);
  close(error_pipe[1]);
  int error = pid < 0 ? errno : 0;
  // When execv succeeds, the pipe closes and nothing is read.
  if (pid > 0 && read(error_pipe[0], &error, sizeof(error)) <= 0) error = 0;
  close(error_pipe[0]);
  if (error != 0) {
    if (pid > 0) waitpid(pid, nullptr, 0);
    return absl::InternalError(absl::StrCat("cannot start ", options.name, " (", options.argv[0],
                                            "): ", std::strerror(error)));
  }
  return Process(options.name, pid, OpenPidFd(pid), true);
}

std::optional<Process> Process::FromPidFile(const std::string& name, const std::string& path) {
  std::ifstream file(path);
  pid_t pid = 0;
  std::uint64_t start_ticks = 0;
  if (!(file >> pid >> start_ticks) || pid <= 0) return std::nullopt;
  // Opens the descriptor first, so that it names the process whose start is read.
  FileDescriptor pid_fd = OpenPidFd(pid);
  if (!pid_fd.valid()) return std::nullopt;
  Process process(name, pid, std::move(pid_fd), false);
  if (StartTicks(pid) != start_ticks || process.HasEnded()) return std::nullopt;
  return process;
}

absl::Status Process::WritePidFile(const std::string& path) const {
  std::ofstream file(path, std::ios::trunc);
  file << pid_ << ' ' << StartTicks(pid_) << '\n';
  file.close();
  if (!file) return absl::InternalError(absl::StrCat("cannot write ", path));
  return absl::OkStatus();
}

void Process::Signal(int signal) {
  if (HasEnded()) return;
  syscall(SYS_pidfd_send_signal, pid_fd_.get(), signal, nullptr, 0);
  // The process has not been reaped (or has not ended), so the number of its group is still its
  // own.
  kill(-pid_, signal);
}

void Process::Kill() const { syscall(SYS_pidfd_send_signal, pid_fd_.get(), SIGKILL, nullptr, 0); }

bool Process::WaitUntil(absl::Time deadline) {
  while (!ended_) {
    const absl::Duration left = std::max(absl::ZeroDuration(), deadline - absl::Now());
    pollfd fd{.fd = pid_fd_.get(), .events = POLLIN};
    const int timeout_ms =
        deadline == absl::InfiniteFuture()
            ? -1
            : static_cast<int>(std::min<std::int64_t>(
                  absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1))), 1 << 30));
    const int ready = poll(&fd, 1, timeout_ms);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    ended_ = true;
    int status = 0;
    if (is_child_ && waitpid(pid_, &status, 0) == pid_) wait_status_ = status;
  }
  return true;
}

std::string Process::EndText() const {
  if (!wait_status_.has_value()) return "ended";
  if (WIFEXITED(*wait_status_)) return absl::StrCat("exit status ", WEXITSTATUS(*wait_status_));
  const int signal = WTERMSIG(*wait_status_);
  return absl::StrCat("signal ", signal, " (", strsignal(signal), ")");
}

void StopAll(std::vector<Process*> processes, absl::Duration grace) {
  for (Process* process : processes) process->Signal(SIGTERM);
  const absl::Time deadline = absl::Now() + grace;
  for (Process* process : processes) {
    if (process->WaitUntil(deadline)) continue;
    process->Signal(SIGKILL);
    process->WaitUntil(absl::InfiniteFuture());
  }
}

}  // namespace takt::cli
