// SPDX-License-Identifier: Apache-2.0
// Chooses the best of several readings of two clocks. It needs no device.
#pragma once

#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/status.h"

namespace takt::backend::cuda {

// The host's time before and after a moment of the device.
struct ClockReading {
  std::int64_t before = 0, after = 0;
  std::int64_t gap() const { return after - before; }
  std::int64_t nanos() const { return before + gap() / 2; }
};

// A reading that took longer says too little about the moment: on a GPU that others use, the device
// may come to it late.
inline constexpr std::int64_t kWidestGapNanos = 20'000;

// Reads until a reading is close enough, at most kMostReadings times, and returns the closest. keep
// is called after each reading that is closer than those before it, and never after another one.
// read: absl::StatusOr<ClockReading>().
template <class Read, class Keep>
absl::StatusOr<ClockReading> ClosestReading(const Read& read, const Keep& keep) {
  constexpr int kMostReadings = 16;
  constexpr std::int64_t kCloseEnoughNanos = kWidestGapNanos / 2;
  ClockReading best{.after = std::numeric_limits<std::int64_t>::max()};
  for (int i = 0; i < kMostReadings && best.gap() > kCloseEnoughNanos; ++i) {
    ASSIGN_OR_RETURN(const ClockReading reading, read());
    if (reading.gap() >= best.gap()) continue;
    best = reading;
    keep();
  }
  return best;
}

}  // namespace takt::backend::cuda
