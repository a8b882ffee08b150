// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace takt::train {

// Hands out consecutive regions of one buffer of floats, each starting on a cache line. A layout is
// a struct of the offsets.
class Regions {
 public:
  std::int64_t Add(std::int64_t floats) {
    const std::int64_t offset = size_;
    size_ += (floats + kFloatsPerLine - 1) / kFloatsPerLine * kFloatsPerLine;
    return offset;
  }
  std::int64_t size() const { return size_; }

 private:
  static constexpr std::int64_t kFloatsPerLine = 16;
  std::int64_t size_ = 0;
};

}  // namespace takt::train
