// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace takt::layout {

inline constexpr std::int64_t kLineBytes = 64;  // a cache line: every tensor may begin on one

constexpr std::int64_t RoundUp(std::int64_t bytes, std::int64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// Hands out consecutive regions of one allocation. Each begins on a cache line.
class Regions {
 public:
  // Returns the offset of a region of so many bytes.
  std::int64_t Add(std::int64_t bytes) {
    const std::int64_t offset = size_;
    size_ += RoundUp(bytes, kLineBytes);
    return offset;
  }
  std::int64_t size() const { return size_; }

 private:
  std::int64_t size_ = 0;
};

}  // namespace takt::layout
