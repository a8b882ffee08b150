// SPDX-License-Identifier: Apache-2.0
// Kills a rank's peer, and reports how the rank ends.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "tests/bench/links.h"

namespace takt::bench {

// Returns how a rank ends whose peer dies while the rank waits for a message (receiving), or while
// it sends large messages: "UNAVAILABLE after 0.1 ms", "signal 6 after 0.1 ms", or "still waits".
// The calling process must have no other threads.
absl::StatusOr<std::string> OutcomeOfDeath(const LinkKind& kind, bool receiving);

}  // namespace takt::bench
