// SPDX-License-Identifier: Apache-2.0
// The folder of one coordinator: its state file, its lock, and the file that says how to reach it.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace takt::store {

// Where the coordinator listens; empty: it does not.
struct Addresses {
  std::string listen;   // as a gRPC target: unix:PATH or HOST:PORT, port resolved
  std::string metrics;  // HOST:PORT, port resolved
};

// One process holds the folder at a time, for as long as the object lives. The kernel releases it
// when the process dies.
class StateDir final {
 public:
  // Creates the folder (mode 0700) if it is missing. Errors: kUnavailable (cannot be made or
  // written), kFailedPrecondition (another coordinator holds it; names its process).
  static absl::StatusOr<StateDir> Acquire(const std::string& path);
  StateDir(StateDir&& other) noexcept;
  StateDir& operator=(StateDir&&) = delete;
  ~StateDir();

  std::string state_file() const { return path_ + "/coordinator.sqlite"; }
  std::string addresses_file() const { return path_ + "/coordinator.json"; }

  // Writes addresses_file: {"pid", "listen", "metrics"}; readers see the whole old or the whole new
  // one.
  absl::Status PublishAddresses(const Addresses& addresses) const;

 private:
  StateDir(std::string path, int lock_fd) : path_(std::move(path)), lock_fd_(lock_fd) {}

  std::string path_;
  int lock_fd_;
};

}  // namespace takt::store
