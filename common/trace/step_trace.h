// SPDX-License-Identifier: Apache-2.0
// Records when each instruction of one step ran on one rank. A worker always measures this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/id.h"

namespace takt::trace {

// Nanoseconds of one host's steady clock.
struct Span {
  std::int64_t start_nanos = 0, end_nanos = 0;
  bool operator==(const Span&) const = default;
};

inline constexpr std::size_t kMostStalls = 64;

// An instruction's span begins when all that it waited for on its rank was there. So the span of
// compute has only its work. A SEND or RECV ends when its message has gone or come, and a sum over
// ranks ends when all ranks have come.
struct StepTrace {
  Rank rank;
  StepId step;
  // The end of the step before on this rank. If no step came right before this one, it is the start
  // of the first instruction, that of the prologue if there is one.
  std::int64_t start_nanos = 0;
  std::vector<Span> body;      // as program.body
  std::vector<Span> prologue;  // as program.prologue; empty: it did not run before this step
  // The times when the rank's process did not run, because it was stopped or others had the
  // processor. These are the last kMostStalls of those that overlap the step.
  std::vector<Span> stalls;
  // The meetings inside the instructions of the body, in the order of program::MeetingOffsets. A
  // span begins when this rank came.
  std::vector<Span> meetings;
  bool operator==(const StepTrace&) const = default;
};

}  // namespace takt::trace
