// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

namespace takt::bench {

// Watches the memory of this process that no file is behind. Mapped files are left out: the kernel
// takes their pages away when it wants to.
class AnonymousMemory final {
 public:
  AnonymousMemory();
  ~AnonymousMemory();
  AnonymousMemory(const AnonymousMemory&) = delete;
  AnonymousMemory& operator=(const AnonymousMemory&) = delete;

  // Returns the most bytes by which it has grown since construction. It is looked at every 2 ms.
  std::int64_t MostGrowth() const { return most_ - before_; }

 private:
  const std::int64_t before_;
  std::atomic<std::int64_t> most_;
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

}  // namespace takt::bench
