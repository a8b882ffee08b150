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

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_descriptor.h"
#include "common/base/mapped_file.h"
#include "common/base/status.h"

extern char** environ;

namespace takt::planner {
namespace {

constexpr std::size_t kMaxLastWords = 512;

absl::Status Failed(const char* what, int error) {
  return absl::ResourceExhaustedError(absl::StrCat(what, ": ", std::strerror(error)));
}

// Standard streams are files in memory, so that neither side ever waits for the other to read.
absl::StatusOr<FileDescriptor> MakeFile(std::string_view content) {
  FileDescriptor file(memfd_create("takt-planner", MFD_CLOEXEC));
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

std::string Text(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
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
ChildEnd::Cause Await(const FileDescriptor& child, const ChildOptions& options) {
  if (child.get() < 0) return ChildEnd::Cause::kStopped;
  const auto now = [&] { return Moment::Of(*options.clock).steady; };
  const absl::Duration deadline = now() + options.time_limit;
  std::array<pollfd, 2> waited = {{{child.get(), POLLIN, 0}, {options.stop_fd, POLLIN, 0}}};
  while (true) {
    // An int holds an hour. The time is rounded up, so that the deadline is over after it.
    const absl::Duration wait = std::clamp(deadline - now(), absl::ZeroDuration(), absl::Hours(1));
    const int millis = static_cast<int>(absl::ToInt64Milliseconds(wait)) + 1;
    if (poll(waited.data(), waited.size(), millis) < 0 && errno != EINTR)
      return ChildEnd::Cause::kStopped;
    if (waited[0].revents != 0) return ChildEnd::Cause::kEnded;
    if (waited[1].revents != 0) return ChildEnd::Cause::kStopped;
    if (now() >= deadline) return ChildEnd::Cause::kTimedOut;
  }
}

}  // namespace

absl::StatusOr<ChildEnd> RunChild(const ChildOptions& options) {
  ASSIGN_OR_RETURN(const FileDescriptor input, MakeFile(options.input));
  ASSIGN_OR_RETURN(const FileDescriptor output, MakeFile(""));
  ASSIGN_OR_RETURN(const FileDescriptor errors, MakeFile(""));
  ASSIGN_OR_RETURN(const pid_t pid, Spawn(options.argv, {input.get(), output.get(), errors.get()}));
  ChildEnd end;
  const FileDescriptor pid_fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  end.cause = Await(pid_fd, options);
  // The child is not reaped yet, so the number still belongs to it.
  if (end.cause != ChildEnd::Cause::kEnded) kill(pid, SIGKILL);
  while (waitpid(pid, &end.wait_status, 0) < 0 && errno == EINTR) {
  }
  ASSIGN_OR_RETURN(const MappedFile answer, MappedFile::Map(output, "the child's output"));
  ASSIGN_OR_RETURN(const MappedFile complaints, MappedFile::Map(errors, "the child's errors"));
  end.output = Text(answer);
  end.last_words = LastLine(Text(complaints));
  return end;
}

}  // namespace takt::planner
