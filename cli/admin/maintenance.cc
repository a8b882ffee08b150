// SPDX-License-Identifier: Apache-2.0
#include "cli/admin/maintenance.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/file_descriptor.h"
#include "common/base/status.h"

namespace takt::cli {
namespace {

// Says how a program ended and what it printed. If a signal ended it, its exit status is -1.
struct Ended {
  std::string out, errors;
  int exit_status = -1;
};

std::string ReadAll(int fd) {
  std::string text;
  std::array<char, 4096> buffer;
  while (true) {
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
}

// The program prints to at most one of the two, so they are read one after the other.
absl::StatusOr<Ended> RunProgram(std::vector<std::string> arguments) {
  int out[2], errors[2];
  if (::pipe2(out, O_CLOEXEC) != 0) return FileError(errno, "cannot make a pipe");
  const FileDescriptor read_out(out[0]);
  FileDescriptor write_out(out[1]);
  if (::pipe2(errors, O_CLOEXEC) != 0) return FileError(errno, "cannot make a pipe");
  const FileDescriptor read_errors(errors[0]);
  FileDescriptor write_errors(errors[1]);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, write_out.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, write_errors.get(), STDERR_FILENO);
  pid_t child = 0;
  const int failed = ::posix_spawn(&child, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) {
    return absl::NotFoundError(
        absl::StrCat("cannot run ", arguments[0], ": ", std::strerror(failed),
                     "; run this on the machine where takt-coordinator is installed"));
  }
  // Only the child writes from now on, so that its end is the end of both pipes.
  const bool closed = write_out.Close() && write_errors.Close();
  Ended ended{.out = closed ? ReadAll(read_out.get()) : "", .errors = ReadAll(read_errors.get())};
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status)) ended.exit_status = WEXITSTATUS(status);
  return ended;
}

}  // namespace

absl::StatusOr<ExitCode> MaintainState(const Context& context,
                                       const std::vector<std::string>& arguments) {
  std::vector<std::string> all = {absl::StrCat(context.program_directory, "/takt-coordinator"),
                                  "--maintain-state"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  ASSIGN_OR_RETURN(const Ended ended, RunProgram(std::move(all)));
  context.terminal.out << ended.out;
  if (ended.exit_status == 0) return ExitCode::kDone;
  if (!ended.out.empty()) return ExitCode::kFailed;  // a check that found something
  absl::string_view message = ended.errors;
  absl::ConsumePrefix(&message, "takt-coordinator: ");
  absl::ConsumeSuffix(&message, "\n");
  if (message.empty()) message = "takt-coordinator ended without a word";
  if (ended.exit_status == static_cast<int>(ExitCode::kNotFound))
    return absl::NotFoundError(message);
  if (ended.exit_status == static_cast<int>(ExitCode::kInvalidInput))
    return absl::InvalidArgumentError(message);
  return absl::FailedPreconditionError(message);
}

}  // namespace takt::cli
