// SPDX-License-Identifier: Apache-2.0
// Starts and stops the processes of `takt local`. Signals go through a pidfd, so never to another
// process that reuses the pid.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/file_descriptor.h"

namespace takt::cli {

struct SpawnOptions {
  std::string name;               // for people and files, e.g. "worker-0"
  std::vector<std::string> argv;  // argv[0]: absolute path of the program
  std::string log_path;           // stdout and stderr are appended here
  // The kernel kills the child when the thread that spawned it ends. Otherwise the child leads a
  // session of its own and goes on.
  bool die_with_parent = true;
  int inherited_fd = -1;  // stays open in the child
};

// A process that runs or has ended. Movable; one caller at a time.
class Process final {
 public:
  // Starts the process in "/", as leader of a process group of its own, with default signal
  // handling. kNotFound: no such program.
  static absl::StatusOr<Process> Spawn(const SpawnOptions& options);
  // Finds the process of a pid file that WritePidFile wrote. Empty: it is gone.
  static std::optional<Process> FromPidFile(const std::string& name, const std::string& path);

  const std::string& name() const { return name_; }
  pid_t pid() const { return pid_; }

  absl::Status WritePidFile(const std::string& path) const;
  // Sends a signal to the process and its group. Does nothing if the process is gone.
  void Signal(int signal);
  // Sends SIGKILL. Any thread.
  void Kill() const;
  // Waits. Returns true if the process has ended by `deadline`.
  bool WaitUntil(absl::Time deadline);
  bool HasEnded() { return WaitUntil(absl::InfinitePast()); }
  // Returns "exit status 3" or "signal 9 (Killed)", or "ended" for a process that was not spawned
  // here. Call it when the process has ended.
  std::string EndText() const;

 private:
  Process(std::string name, pid_t pid, FileDescriptor pid_fd, bool is_child)
      : name_(std::move(name)), pid_(pid), pid_fd_(std::move(pid_fd)), is_child_(is_child) {}

  std::string name_;
  pid_t pid_ = -1;
  FileDescriptor pid_fd_;
  bool is_child_ = false;
  bool ended_ = false;
  std::optional<int> wait_status_;
};

// Sends SIGTERM to all at once, and SIGKILL to those that still run after `grace`. Returns when all
// are gone.
void StopAll(std::vector<Process*> processes, absl::Duration grace);

}  // namespace takt::cli
