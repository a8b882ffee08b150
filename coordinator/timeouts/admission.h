// SPDX-License-Identifier: Apache-2.0
// Says how fast the coordinator accepts new connections, and so how long it takes until all workers
// that have lost it are back.
#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace takt::timeouts {

// The coordinator accepts this many connections over TCP at once, and then this many a second. A
// handshake takes about a millisecond of a core, so clients that are connected still get half of
// one.
inline constexpr int kConnectionsAtOnce = 100;
inline constexpr int kConnectionsPerSecond = 500;

// A worker has a connection for control and one for reports.
inline constexpr int kConnectionsPerWorker = 2;

// Returns how much longer `workers` workers need to come back than a few would.
inline absl::Duration ReturnTime(int workers) {
  const int waiting = std::max(0, workers * kConnectionsPerWorker - kConnectionsAtOnce);
  return absl::Seconds(1) * waiting / kConnectionsPerSecond;
}

}  // namespace takt::timeouts
