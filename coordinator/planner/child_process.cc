// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/child_process.h"

#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status.h"

extern char** environ;

namespace takt::planner {
namespace {

constexpr std::size_t kMaxLastWords = 512;

absl::Status Failed(const char* what, int error) {
  return absl::ResourceExhaustedError(absl::StrCat(what, ": ", std::strerror(error)));
}

class Descriptor final {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

// Standard streams are files in memory, so that neither side ever waits for the other to read.
absl::StatusOr<Descriptor> MakeFile(std::string_view content) {
  Descriptor file(memfd_create("takt-planner", MFD_CLOEXEC));
  if (file.get() < 0) return Failed("memfd_create", errno);
  while (!content.empty()) {
    const ssize_t written = write(file.get(), content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return Failed("write to a file in memory", errno);
    content.remove_prefix(written);
  }
  lseek(file.get(), 0, SEEK_SET);
  return file;
}

std::string ReadAll(const Descriptor& file) {
  std::string content(std::max<off_t>(0, lseek(file.get(), 0, SEEK_END)), '\0');
  std::size_t done = 0;
  while (done < content.size()) {
    const ssize_t count =
        pread(file.get(), content.data() + done, content.size() - done, static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    done += count;
  }
  content.resize(done);
  return content;
}

std::string LastLine(std::string text) {
  absl::StripTrailingAsciiWhitespace(&text);
  return text.substr(text.rfind('\n') + 1, kMaxLastWords);
}

absl::StatusOr<pid_t> Spawn(const std::vector<std::string>& argv,
                            const std::array<int, 3>& streams) {
  std::vector<char*> arguments;
  for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (int stream = 0; stream < static_cast<int>(streams.size()); ++stream)
    posix_spawn_file_actions_adddup2(&actions, streams[stream], stream);
  posix_spawn_file_actions_addclosefrom_np(&actions, static_cast<int>(streams.size()));

  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);

  pid_t pid = 0;
  const int error =
      posix_spawn(&pid, argv[0].c_str(), &actions, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error == EAGAIN || error == ENOMEM) return Failed("cannot start a process", error);
  if (error != 0)
    return absl::InternalError(absl::StrCat("cannot run ", argv[0], ": ", std::strerror(error)));
  return pid;
}

// Waits until the child ends, its time is over or stop_fd can be read.
ChildEnd::Cause Await(int pid_fd, int stop_fd, absl::Duration time_limit) {
  const absl::Time deadline = absl::Now() + time_limit;
  std::array<pollfd, 2> waited = {{{pid_fd, POLLIN, 0}, {stop_fd, POLLIN, 0}}};
  while (true) {
    const absl::Duration left = std::max(absl::ZeroDuration(), deadline - absl::Now());
    const bool forever = left == absl::InfiniteDuration();
    const int millis =
        forever ? -1 : static_cast<int>(absl::ToInt64Milliseconds(std::min(left, absl::Hours(1))));
    const int ready = poll(waited.data(), waited.size(), forever ? -1 : millis + 1);
    if (ready < 0 && errno != EINTR) return ChildEnd::Cause::kStopped;
    if (waited[0].revents != 0) return ChildEnd::Cause::kEnded;
    if (waited[1].revents != 0) return ChildEnd::Cause::kStopped;
    if (absl::Now() >= deadline) return ChildEnd::Cause::kTimedOut;
  }
}

}  // namespace

absl::StatusOr<ChildEnd> RunChild(const ChildOptions& options) {
  ASSIGN_OR_RETURN(const Descriptor input, MakeFile(options.input));
  ASSIGN_OR_RETURN(const Descriptor output, MakeFile(""));
  ASSIGN_OR_RETURN(const Descriptor errors, MakeFile(""));
  ASSIGN_OR_RETURN(const pid_t pid, Spawn(options.argv, {input.get(), output.get(), errors.get()}));
  ChildEnd end;
  const Descriptor pid_fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  end.cause = pid_fd.get() >= 0 ? Await(pid_fd.get(), options.stop_fd, options.time_limit)
                                : ChildEnd::Cause::kStopped;
  // The child is not reaped yet, so the number still belongs to it.
  if (end.cause != ChildEnd::Cause::kEnded) kill(pid, SIGKILL);
  while (waitpid(pid, &end.wait_status, 0) < 0 && errno == EINTR) {
  }
  end.output = ReadAll(output);
  end.last_words = LastLine(ReadAll(errors));
  return end;
}

std::string EndText(int wait_status) {
  if (WIFEXITED(wait_status)) return absl::StrCat("exit status ", WEXITSTATUS(wait_status));
  const int signal = WTERMSIG(wait_status);
  return absl::StrCat("signal ", signal, " (", strsignal(signal), ")");
}

}  // namespace takt::planner
