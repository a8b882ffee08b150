// SPDX-License-Identifier: Apache-2.0
// The compact form in which step traces travel and are kept. docs/tracing.md describes it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/trace/step_trace.h"

namespace takt::trace {

// A trace without meetings has version 3, one without stalls either has 2, and one with only a body
// has 1.
inline constexpr int kEncodingVersion = 4;

// Takes at most 18 bytes an instruction, meeting or stall (usually 6 to 8) and 32 more.
// Precondition: no span ends before it starts, and times fit (decoding checks both).
std::string Encode(const StepTrace& trace);

// kInvalidArgument: the version is another one, a value is cut off, overlong or out of range, there
// are more or fewer bytes than the number of instructions says, or more than kMostStalls stalls.
absl::StatusOr<StepTrace> Decode(std::string_view bytes);

}  // namespace takt::trace
