// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace takt::backend {

// Memory with two addresses: the one that is handed out, which faults when it is touched, and a
// twin for the device's own threads. Thread-safe.
class DeviceMemory {
 public:
  // Returns zeroed memory.  Errors: kResourceExhausted.
  absl::StatusOr<std::byte*> Allocate(std::size_t bytes);
  void Free(std::byte* memory);

  // Returns the twin of an address within memory that was handed out; null: it is of no such
  // memory.
  std::byte* Twin(const void* address) const;

 private:
  struct Block {
    std::size_t bytes = 0;
    std::byte* twin = nullptr;
  };
  mutable absl::Mutex mutex_;
  std::map<const std::byte*, Block> blocks_ ABSL_GUARDED_BY(mutex_);  // by what was handed out
};

}  // namespace takt::backend
