// SPDX-License-Identifier: Apache-2.0
// Which steps' traces are sent: all of them unless steps are very short.
#pragma once

#include <cstdint>

#include "common/base/id.h"

namespace takt::session {

// One caller at a time.
class TraceSampler {
 public:
  // seconds: of this step. Every n-th step, n the least power of two with which there are at most
  // fifty a second. Ranks judge for themselves: whatever n each takes, steps that one with a larger
  // n sends are sent by all.
  bool Takes(StepId step, double seconds) {
    constexpr double kLeastSeconds = 0.020;  // between two
    // Slowly: a single long or short step says nothing.
    usual_seconds_ = usual_seconds_ == 0 ? seconds : 0.9 * usual_seconds_ + 0.1 * seconds;
    std::int64_t stride = 1;
    while (stride < kMostStride && static_cast<double>(stride) * usual_seconds_ < kLeastSeconds) {
      stride *= 2;
    }
    return step.value() % stride == 0;
  }

 private:
  static constexpr std::int64_t kMostStride = 1 << 20;
  double usual_seconds_ = 0;
};

}  // namespace takt::session
