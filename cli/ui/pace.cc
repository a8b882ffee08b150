// SPDX-License-Identifier: Apache-2.0
#include "cli/ui/pace.h"

#include <time.h>

#include <algorithm>

#include "absl/synchronization/notification.h"

namespace takt::cli {

absl::Duration PauseAfter(absl::Duration used, absl::Duration shortest) {
  return std::min(absl::Seconds(30), std::max(shortest, used / kShareOfCore));
}

absl::Duration ProcessorTime() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return absl::DurationFromTimespec(time);
}

bool Pause(const std::stop_token& stop, absl::Duration duration) {
  absl::Notification stopped;
  const std::stop_callback wake(stop, [&] { stopped.Notify(); });
  return !stopped.WaitForNotificationWithTimeout(duration);
}

}  // namespace takt::cli
