// SPDX-License-Identifier: Apache-2.0
// Decides which steps' traces are sent: all of them unless steps are very short.
#pragma once

#include <cstdint>

#include "common/base/id.h"

namespace takt::session {

// One caller at a time.
class TraceSampler {
 public:
  // first_steps: so many are taken however short they are, so that a job of few steps has some.
  explicit TraceSampler(int first_steps = 0) : first_steps_left_(first_steps) {}

  // Returns true for the first steps that it is asked about, and for every n-th step, where n is
  // the least power of two with which at most fifty steps a second are taken. seconds: the length
  // of this step. Each rank decides by itself: whatever n each rank has, the steps that a rank with
  // a larger n sends are sent by all. The ranks of a job begin at the same step.
  bool Takes(StepId step, double seconds) {
    constexpr double kLeastSeconds = 0.020;  // between two traces
    // The average changes slowly, because a single long or short step says nothing.
    usual_seconds_ = usual_seconds_ == 0 ? seconds : 0.9 * usual_seconds_ + 0.1 * seconds;
    std::int64_t stride = 1;
    while (stride < kMostStride && static_cast<double>(stride) * usual_seconds_ < kLeastSeconds) {
      stride *= 2;
    }
    if (first_steps_left_ > 0) {
      --first_steps_left_;
      return true;
    }
    return step.value() % stride == 0;
  }

 private:
  static constexpr std::int64_t kMostStride = 1 << 20;
  double usual_seconds_ = 0;
  int first_steps_left_;
};

}  // namespace takt::session
