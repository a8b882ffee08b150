// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

namespace takt::job {

// Counts how often the last steps of a job were clipped. The plan uses this to decide whether steps
// overlap. Each coordinator starts counting from zero. One caller at a time.
class RecentClips {
 public:
  static constexpr std::size_t kMost = 100, kLeast = 50;

  // clip_norm: 0: nothing is clipped.
  void Add(double grad_norm, double clip_norm) {
    clipped_.push_back(clip_norm > 0 && !(grad_norm <= clip_norm));
    if (clipped_.size() > kMost) clipped_.pop_front();
  }

  // Returns nullopt where fewer than kLeast steps are known.
  std::optional<double> share() const {
    if (clipped_.size() < kLeast) return std::nullopt;
    std::int64_t count = 0;
    for (const bool clipped : clipped_) count += clipped ? 1 : 0;
    return static_cast<double>(count) / static_cast<double>(clipped_.size());
  }

 private:
  std::deque<bool> clipped_;
};

}  // namespace takt::job
