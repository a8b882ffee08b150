// SPDX-License-Identifier: Apache-2.0
// The state directory of a cluster on this machine:
//   local.lock     the lock (flock) of the cluster: `local run`, and every process that it or
//                  `local up` started, hold it
//   run/           mode 0700; has coordinator.sock, unless that path is too long for a socket
//   address        where the coordinator of `local up` listens
//   pids/          NAME.pid: "PID START", START as in /proc/PID/stat, so that a process that
//                  reuses the pid is never mistaken for ours
//   logs/          NAME.log of each process
//   coordinator/   the coordinator's own state
#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "cli/base/context.h"
#include "common/base/file_descriptor.h"

namespace takt::cli {

// A locked state directory. Movable. The lock ends when this object and every process that
// inherited the lock have ended.
class LocalState final {
 public:
  // Makes the directory (0700) and its parts. kInvalidArgument (FieldError on --state): another
  // cluster runs on it, or it cannot be made.
  static absl::StatusOr<LocalState> Open(const std::string& directory);
  // Makes a fresh directory under $TMPDIR or /tmp.
  static absl::StatusOr<LocalState> OpenTemporary(const Context& context);

  LocalState(LocalState&& other) noexcept;
  LocalState& operator=(LocalState&&) = delete;
  ~LocalState();

  const std::string& directory() const { return directory_; }
  // "unix:PATH", in run/ or, for a path over 107 bytes, in a private temporary directory that the
  // destructor removes.
  const std::string& coordinator_address() const { return address_; }
  std::string LogPath(const std::string& process) const;
  std::string PidPath(const std::string& process) const;
  int lock_fd() const { return lock_.get(); }

  // For `local up`: writes the file that ReadLocalAddress reads. The socket's directory then
  // outlives this object.
  absl::Status WriteAddress();
  // Deletes the directory with everything in it.
  void Remove();

 private:
  LocalState(std::string directory, FileDescriptor lock)
      : directory_(std::move(directory)), lock_(std::move(lock)) {}
  absl::Status Prepare();

  std::string directory_;
  FileDescriptor lock_;
  std::string address_;
  std::string temporary_socket_directory_;
};

// Removes the address that WriteAddress wrote, with the directory of the socket if that is a
// private one. The cluster must have ended.
void RemoveAddress(const std::string& state_directory);

}  // namespace takt::cli
