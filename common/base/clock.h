// SPDX-License-Identifier: Apache-2.0
// Time as an object: logic is given a Clock and never reads one itself.
#pragma once

#include "absl/time/time.h"

namespace takt {

// Thread-safe. Wall time is for people and records. Steady time is for leases, deadlines and
// durations.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;
  // Returns nanoseconds on a clock that never jumps (CLOCK_MONOTONIC).
  virtual int64_t SteadyNanos() const = 0;

  static const Clock& Real();
};

// Returns the time of the real steady clock. It is for threads that wait in real time, as in RPC.
inline absl::Duration SteadyNow() { return absl::Nanoseconds(Clock::Real().SteadyNanos()); }

// The same instant on both clocks.
struct Moment {
  absl::Time wall;
  absl::Duration steady;

  static Moment Of(const Clock& clock) {
    return {clock.Now(), absl::Nanoseconds(clock.SteadyNanos())};
  }
};

// Measures waits that are stored. It starts at the time of the wall clock and then advances with
// the steady clock, so setting the wall clock does not change it.
class WaitClock final {
 public:
  explicit WaitClock(Moment begin) : begin_(begin) {}

  absl::Time Of(Moment now) const { return begin_.wall + (now.steady - begin_.steady); }
  // Returns what the wall clock will show at `time`, for people, if nobody sets it.
  absl::Time Shown(absl::Time time, Moment now) const { return now.wall + (time - Of(now)); }

 private:
  Moment begin_;
};

// A clock for tests, which moves only in Advance. One caller at a time.
class FakeClock final : public Clock {
 public:
  explicit FakeClock(absl::Time start = absl::UnixEpoch()) : start_(start) {}
  absl::Time Now() const override { return start_ + elapsed_; }
  int64_t SteadyNanos() const override { return absl::ToInt64Nanoseconds(elapsed_); }
  void Advance(absl::Duration by) { elapsed_ += by; }
  // Sets the wall clock.
  void Step(absl::Duration by) { start_ += by; }

 private:
  absl::Time start_;
  absl::Duration elapsed_ = absl::ZeroDuration();
};

}  // namespace takt
