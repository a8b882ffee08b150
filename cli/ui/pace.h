// SPDX-License-Identifier: Apache-2.0
// Says how long a source waits before it looks again, so that looking stays cheap.
#pragma once

#include <stop_token>

#include "absl/time/time.h"

namespace takt::cli {

// The share of a core that a source may take.
inline constexpr double kShareOfCore = 0.015;

// Returns `shortest`, or as long as keeps the share of work that took `used` at kShareOfCore; at
// most 30 seconds.
absl::Duration PauseAfter(absl::Duration used, absl::Duration shortest);

// Returns the processor time that this process has used.
absl::Duration ProcessorTime();

// Waits. Returns false as soon as a stop is requested.
bool Pause(const std::stop_token& stop, absl::Duration duration);

}  // namespace takt::cli
