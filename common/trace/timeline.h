// SPDX-License-Identifier: Apache-2.0
// A job trace on one axis of time: what ran when on every lane of every rank, which message went
// where, why compute lanes ran nothing in between, and what was predicted.
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
  std::int32_t instruction = 0;  // index in the body, or in the prologue
  StepId step;
  std::int64_t start_nanos = 0, end_nanos = 0;
  bool in_prologue = false;
  int part = -1;  // of a meeting inside an instruction: its number in the list of parts
};

// A compute lane that ran nothing waited for one of these.
enum class Cause : std::uint8_t {
  kPeer = 1,  // a message that `peer` had not made yet, or a rank that came late to a meeting
  kLink = 2,  // a message on its way from (or, to free its buffer, to) `peer`, or data of a meeting
              // inside an instruction, all ranks being there
  kReduction = 3,  // a sum of gradients, all ranks being there
  kSync = 4,       // the exchange of norms, all ranks being there
  kData = 5,       // tokens
  kRuntime = 6,    // nothing: it could have begun but did not yet; or its process stood still
  kPause = 7,      // between two steps: validation, a snapshot, the pipeline filling again
};
inline constexpr int kNumCauses = 7;

// "peer", "link", "reduction", "sync", "data", "runtime", "pause".
std::string_view Name(Cause cause);

struct Idle {
  int rank = 0;
  std::int32_t before = 0;  // the instruction that waited, at its start or inside
  StepId step;              // its step
  std::int64_t start_nanos = 0, end_nanos = 0;
  Cause cause = Cause::kRuntime;
  int peer = -1;  // the rank waited for; -1: none in particular
};

struct Flow {
  std::size_t send = 0, recv = 0;  // indices in `slices`
};

// Ascending by start. Spans that overlap or touch become one.
std::vector<Span> Merged(std::vector<Span> spans);

// A step lasts from where the last rank ended the step before to where the last rank ended this
// one. After a pause it begins where the last rank began it, with the prologue done.
struct StepWindow {
  StepId step;
  std::int64_t start_nanos = 0, end_nanos = 0;
};

struct Timeline {
  const JobTrace* trace = nullptr;  // borrowed
  std::vector<StepWindow> steps;
  std::vector<Slice> slices;    // by rank, step, instruction
  std::vector<Slice> prologue;  // of the steps before which it ran, in the same order
  // The meetings inside instructions of the body, by rank, step, instruction and part.
  std::vector<Slice> meetings;
  std::vector<Idle> idle;  // by rank and start; zero-length ones left out
  std::vector<Flow> flows;
  // The times when a rank's process did not run, by rank. They ascend, and no span touches another.
  std::vector<std::vector<Span>> stalls;
  // The prediction of one step, in seconds from its start, by pp rank. Unset: the programs cannot
  // be simulated, or have no flush or no barrier, so that no step of theirs runs alone.
  std::optional<sim::Report> predicted;
  std::int64_t clock_error_nanos = 0;
};

const program::Instruction& InstructionOf(const JobTrace& trace, const Slice& slice);

// trace: at least one step; borrowed for the timeline's life. Idle time before the first
// instruction of the first step on a rank counts from the end of the step before.
// kInvalidArgument: as CheckJobTrace.
absl::StatusOr<Timeline> MakeTimeline(const JobTrace& trace);

}  // namespace takt::trace
