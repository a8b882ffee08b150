// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/synchronization/mutex.h"

namespace takt {

// Abseil's mutexes look for deadlocks if the library was built for that, as Debian's package is:
// each lock then walks a graph of all mutexes, under a lock that all threads share, and takes two
// to fifteen times as long. Tests and debug builds keep it. Programs call this first.
inline void SkipLockChecks() {
#ifdef NDEBUG
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
#endif
}

}  // namespace takt
