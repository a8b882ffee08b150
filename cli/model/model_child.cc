// SPDX-License-Identifier: Apache-2.0
#include "cli/model/model_child.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "google/protobuf/util/delimited_message_util.h"

namespace takt::cli {
namespace {

struct Pipe {
  FileDescriptor read, write;
};

absl::StatusOr<Pipe> MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    return absl::InternalError(absl::StrCat("pipe: ", std::strerror(errno)));
  return Pipe{FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

// Starts the program with these ends as stdin and stdout. It leads a process group of its own, so
// that Ctrl-C reaches this process alone, which then ends it.
absl::StatusOr<pid_t> Spawn(const std::string& program, int input, int output) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, defaults;
  sigemptyset(&none);
  sigemptyset(&defaults);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) sigaddset(&defaults, signal);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  // worker/inference/model_child.h has the arguments.
  std::vector<std::string> arguments = {program, "model-child", absl::StrCat(getpid())};
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, program.c_str(), &actions, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error == 0) return pid;
  return absl::InternalError(
      absl::StrCat("cannot start takt-worker (", program, "): ", std::strerror(error)));
}

// Writes all bytes. A child that ended reads none; the reader of its answers then finds out why.
void WriteAll(int fd, const std::string& bytes) {
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t written = write(fd, bytes.data() + done, bytes.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return;
    done += static_cast<std::size_t>(written);
  }
}

absl::Status StatusOf(const v1::LocalModelFailure& failure) {
  absl::Status status(static_cast<absl::StatusCode>(failure.code()), failure.message());
  if (!failure.detail().empty()) status.SetPayload(kErrorDetailUrl, absl::Cord(failure.detail()));
  return status;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelChild>> ModelChild::Start(
    const std::string& program_directory, const v1::LocalModelRequest& request) {
  ASSIGN_OR_RETURN(Pipe input, MakePipe());
  ASSIGN_OR_RETURN(Pipe output, MakePipe());
  ASSIGN_OR_RETURN(const pid_t pid, Spawn(absl::StrCat(program_directory, "/takt-worker"),
                                          input.read.get(), output.write.get()));
  FileDescriptor pid_fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  auto child =
      std::unique_ptr<ModelChild>(new ModelChild(pid, std::move(pid_fd), std::move(output.read)));
  // The child closes them now with its end, and reads the end of its input with this one's.
  input.read = FileDescriptor();
  output.write = FileDescriptor();
  WriteAll(input.write.get(), request.SerializeAsString());
  return child;
}

ModelChild::ModelChild(pid_t pid, FileDescriptor pid_fd, FileDescriptor answers)
    : pid_(pid),
      pid_fd_(std::move(pid_fd)),
      answers_(std::move(answers)),
      stream_(answers_.get()) {}

ModelChild::~ModelChild() {
  if (reaped_) return;
  Kill();
  waitpid(pid_, nullptr, 0);
}

absl::StatusOr<v1::LocalModelAnswer> ModelChild::Next() {
  v1::LocalModelAnswer answer;
  bool ended = false;
  if (!google::protobuf::util::ParseDelimitedFromZeroCopyStream(&answer, &stream_, &ended))
    return Ended();
  if (answer.has_failure()) return StatusOf(answer.failure());
  return answer;
}

void ModelChild::Kill() {
  killed_ = true;
  syscall(SYS_pidfd_send_signal, pid_fd_.get(), SIGKILL, nullptr, 0);
}

// Returns why there are no more answers.
absl::Status ModelChild::Ended() {
  if (killed_) return absl::CancelledError("interrupted");
  int status = 0;
  waitpid(pid_, &status, 0);
  reaped_ = true;
  const std::string how = WIFSIGNALED(status) ? absl::StrCat("signal ", WTERMSIG(status), " (",
                                                             strsignal(WTERMSIG(status)), ")")
                                              : absl::StrCat("exit status ", WEXITSTATUS(status));
  return absl::InternalError(
      absl::StrCat("takt-worker, which runs the model, ended by ", how,
                   WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL
                       ? ": the machine may have too little memory for this model"
                       : ""));
}

}  // namespace takt::cli
