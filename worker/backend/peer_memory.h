// SPDX-License-Identifier: Apache-2.0
// Lets the device of one process copy from the memory of a device of another process on the same
// host, without kernels.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/stream.h"

namespace takt::backend {

// A contiguous part of a device's memory, as its process shows it to others.
struct SharedRegion {
  const std::byte* base = nullptr;
  std::size_t bytes = 0;
  std::string handle;  // what another process opens it by: printable, at most kMostHandleBytes
};

inline constexpr std::size_t kMostHandleBytes = 159;

// The memory of one device, and what it sees of others. The factory of its backends owns it.
// Thread-safe.
class PeerMemory {
 public:
  virtual ~PeerMemory() = default;

  // Returns all regions that hold buffers, or will while no new region is needed. They must not be
  // given back to the driver while another process has them open.
  // Errors: kFailedPrecondition: why other processes cannot open them.
  virtual absl::StatusOr<std::vector<SharedRegion>> Share() = 0;

  // Makes another process's region readable by copies of this device, and returns where it begins.
  // Blocks: the driver may wait for the device.  Errors: kFailedPrecondition: why this device
  // cannot reach it.
  virtual absl::StatusOr<const std::byte*> Open(const std::string& handle) = 0;
  // base: from Open, not closed yet. No copy from it is under way.
  virtual void Close(const std::byte* base) = 0;

  // Gives `stream`, of this device, a copy from an opened region to memory of this device. Between
  // two devices a copy engine does it. Call Stream::MakeRoom before.  Errors: those of the device.
  virtual absl::Status Copy(const std::byte* from, std::span<std::byte> to, Stream& stream) = 0;
};

}  // namespace takt::backend
