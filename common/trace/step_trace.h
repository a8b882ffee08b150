// SPDX-License-Identifier: Apache-2.0
// When each instruction of one step ran on one rank: what a worker measures, always.
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

// An instruction's span begins when all that it waited for on its rank was there. So compute is
// pure work; a SEND or RECV ends when its message has gone or come; a sum over ranks ends when all
// came.
struct StepTrace {
  Rank rank;
  StepId step;
  // The end of the step before on this rank, or, if none came right before it, the first
  // instruction's start, the prologue's if there is one.
  std::int64_t start_nanos = 0;
  std::vector<Span> body;      // as program.body
  std::vector<Span> prologue;  // as program.prologue; empty: it did not run before this step
  // When the rank's process did not run: it was stopped, or others had the processor. The last
  // kMostStalls of those that overlap the step.
  std::vector<Span> stalls;
  bool operator==(const StepTrace&) const = default;
};

}  // namespace takt::trace
