// SPDX-License-Identifier: Apache-2.0
// Memory that two processes of one host see. It has no name in any file system: the peer opens it
// through this process's descriptor (/proc/PID/fd/N), so nothing is left behind however a process
// ends.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/transport/handshake.h"

namespace takt::transport {

struct SharedMemory {
  std::shared_ptr<std::byte> bytes;  // unmapped (and closed) with the last copy
  std::size_t size_bytes = 0;
  std::string handle;  // what the peer needs to attach; only from Create
};

// Returns zeroed memory. label: shown in /proc/PID/maps.
absl::StatusOr<SharedMemory> CreateSharedMemory(const std::string& label, std::size_t size_bytes);

// kUnavailable: no process here has what the handle names (it has gone, or is on another host or in
// another PID namespace). kFailedPrecondition: this process does not share memory with the one that
// made the handle (as of another user), in words. The caller must
// still check the contents: a PID may mean another process here.
absl::StatusOr<SharedMemory> AttachSharedMemory(const std::string& handle);

}  // namespace takt::transport
