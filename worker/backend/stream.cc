// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/stream.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "common/base/status.h"

namespace takt::backend {

absl::Status Event::WaitUnless(absl::FunctionRef<bool()> gives_up) {
  using std::chrono::microseconds;
  // A point that is nearly reached is noticed at once. A wait that takes long costs few polls, and
  // ends no later than that of a thread that sleeps until the driver wakes it.
  constexpr microseconds kMost(100);
  for (microseconds pause(1);; pause = std::min(2 * pause, kMost)) {
    ASSIGN_OR_RETURN(const bool reached, Reached());
    if (reached) return absl::OkStatus();
    if (gives_up()) return absl::CancelledError("gave up waiting for the device");
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace takt::backend
