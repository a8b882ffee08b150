// SPDX-License-Identifier: Apache-2.0
// The compact form in which step traces travel and are kept: docs/tracing.md.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/trace/step_trace.h"

namespace takt::trace {

inline constexpr int kEncodingVersion =
    3;  // of a trace without stalls 2, without a prologue either 1

// At most 18 bytes an instruction or stall (usually 6 to 8) and 32 more. Precondition: no span ends
// before it starts, times fit (checked when decoded).
std::string Encode(const StepTrace& trace);

// kInvalidArgument: another version, a value that is cut off, overlong or out of range, more or
// fewer bytes than the number of instructions says, more than kMostStalls stalls.
absl::StatusOr<StepTrace> Decode(std::string_view bytes);

}  // namespace takt::trace
