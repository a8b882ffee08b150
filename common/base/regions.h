// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace takt {

// Hands out consecutive regions of one buffer, each starting on a cache line. A layout is a struct
// of the offsets, in bytes.
class Regions {
 public:
  std::int64_t Add(std::int64_t bytes) {
    const std::int64_t offset = size_;
    size_ += (bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
    return offset;
  }
  std::int64_t size() const { return size_; }

 private:
  static constexpr std::int64_t kLineBytes = 64;
  std::int64_t size_ = 0;
};

}  // namespace takt
