// SPDX-License-Identifier: Apache-2.0
// Counts the memory that is allocated in a process, by kind.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "common/base/memory_kind.h"

namespace takt::backend {

// Thread-safe.
class MemoryLedger {
 public:
  // bytes: negative for what is freed.
  void Add(MemoryKind kind, std::int64_t bytes) {
    bytes_[static_cast<std::size_t>(kind)].fetch_add(bytes, std::memory_order_relaxed);
  }
  MemoryBytes Read() const {
    MemoryBytes bytes;
    for (std::size_t kind = 0; kind < kNumMemoryKinds; ++kind)
      bytes[static_cast<MemoryKind>(kind)] = bytes_[kind].load(std::memory_order_relaxed);
    return bytes;
  }

 private:
  std::array<std::atomic<std::int64_t>, kNumMemoryKinds> bytes_{};
};

}  // namespace takt::backend
