// SPDX-License-Identifier: Apache-2.0
// A job trace on one axis of time: what ran when on every lane of every rank, which message went
// where, why nothing was computed in between, and what was predicted.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/sim/simulate.h"
#include "common/trace/job_trace.h"

namespace takt::trace {

// All times are nanoseconds since the timeline's origin.

struct Slice {
  int rank = 0;
  std::int32_t instruction = 0;  // index in the body
  StepId step;
  std::int64_t start_nanos = 0, end_nanos = 0;
};

// What a compute lane that ran nothing waited for.
enum class Cause : std::uint8_t {
  kPeer = 1,       // a message that `peer` had not made yet, or a rank that came late to a sum
  kLink = 2,       // a message on its way from (or, to free its buffer, to) `peer`
  kReduction = 3,  // a sum of gradients, all ranks being there
  kSync = 4,       // the exchange of norms, all ranks being there
  kData = 5,       // tokens
  kRuntime = 6,    // nothing: from when it could have begun to when it did
};
inline constexpr int kNumCauses = 6;

// "peer", "link", "reduction", "sync", "data", "runtime".
std::string_view Name(Cause cause);

struct Idle {
  int rank = 0;
  std::int32_t before = 0;  // the instruction that waited
  StepId step;              // its step
  std::int64_t start_nanos = 0, end_nanos = 0;
  Cause cause = Cause::kRuntime;
  int peer = -1;  // the rank waited for; -1: none in particular
};

struct Flow {
  std::size_t send = 0, recv = 0;  // indices in `slices`
};

struct StepWindow {
  StepId step;
  std::int64_t start_nanos = 0, end_nanos = 0;  // the last rank's ends of the step before and of it
};

struct Timeline {
  const JobTrace* trace = nullptr;  // borrowed
  std::vector<StepWindow> steps;
  std::vector<Slice> slices;  // by rank, step, instruction
  std::vector<Idle> idle;     // by rank and start; zero-length ones left out
  std::vector<Flow> flows;
  // Of one step, in seconds from its start, by pp rank. Unset: the programs cannot be simulated.
  std::optional<sim::Report> predicted;
  std::int64_t clock_error_nanos = 0;
};

// trace: at least one step; borrowed for the timeline's life. Idle time before the first
// instruction of the first step on a rank counts from the end of the step before. kInvalidArgument:
// see CheckJobTrace.
absl::StatusOr<Timeline> MakeTimeline(const JobTrace& trace);

}  // namespace takt::trace
