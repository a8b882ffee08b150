// SPDX-License-Identifier: Apache-2.0
// Time as an object: logic is given a Clock and never reads one itself.
#pragma once

#include "absl/time/time.h"

namespace takt {

// Thread-safe. Wall time is for people and records; steady time for leases, deadlines and
// durations.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;
  // Nanoseconds on a clock that never jumps (CLOCK_MONOTONIC).
  virtual int64_t SteadyNanos() const = 0;

  static const Clock& Real();
};

// One instant on both.
struct Moment {
  absl::Time wall;
  absl::Duration steady;

  static Moment Of(const Clock& clock) {
    return {clock.Now(), absl::Nanoseconds(clock.SteadyNanos())};
  }
};

// Moves only when told. For tests; one caller at a time.
class FakeClock final : public Clock {
 public:
  explicit FakeClock(absl::Time start = absl::UnixEpoch()) : start_(start) {}
  absl::Time Now() const override { return start_ + elapsed_; }
  int64_t SteadyNanos() const override { return absl::ToInt64Nanoseconds(elapsed_); }
  void Advance(absl::Duration by) { elapsed_ += by; }

 private:
  absl::Time start_;
  absl::Duration elapsed_ = absl::ZeroDuration();
};

}  // namespace takt
