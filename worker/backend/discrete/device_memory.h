// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "worker/backend/peer_memory.h"

namespace takt::backend {

// Memory with two addresses: the one that is handed out, which faults when it is touched, and a
// twin for the device's own threads. Thread-safe.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  // All memory must have come back, and all regions must be closed.
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  // Makes Allocate take from one region of so many bytes, which other devices may open. Call it
  // before the first Allocate. Addresses are not used again, so that `bytes` bounds all that is
  // ever allocated.  Errors: kResourceExhausted.
  absl::Status ReserveRegion(std::size_t bytes);

  // Returns zeroed memory.  Errors: kResourceExhausted.
  absl::StatusOr<std::byte*> Allocate(std::size_t bytes);
  void Free(std::byte* memory);

  // Returns the region of ReserveRegion. Precondition: there is one.
  SharedRegion region() const;
  // Maps the region of another device, of this process or another one, and returns where it is
  // shown. Its bytes have twins, too.  Errors: kFailedPrecondition (the handle opens nothing).
  absl::StatusOr<const std::byte*> OpenRegion(const std::string& handle);
  void CloseRegion(const std::byte* base);

  // Returns the twin of an address within memory that was handed out or opened; null: it is of no
  // such memory.
  std::byte* Twin(const void* address) const;

 private:
  struct Block {
    std::size_t bytes = 0;
    std::byte* twin = nullptr;
    bool in_region = false;  // of this device, so that the region maps it
  };
  struct Region {
    int file = -1;
    std::size_t bytes = 0, used = 0;
    std::byte *shown = nullptr, *twin = nullptr;
  };

  absl::StatusOr<std::byte*> AllocateInRegionLocked(std::size_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::optional<Region> region_ ABSL_GUARDED_BY(mutex_);
  std::map<const std::byte*, Block> blocks_ ABSL_GUARDED_BY(mutex_);  // by what was handed out
};

}  // namespace takt::backend
