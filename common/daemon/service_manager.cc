// SPDX-License-Identifier: Apache-2.0
#include "common/daemon/service_manager.h"

#include <systemd/sd-daemon.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

namespace takt::daemon {

void NotifyReady(const std::string& status) {
  sd_notify(0, absl::StrCat("READY=1\nSTATUS=", status).c_str());
}

void NotifyStopping(const std::string& status) {
  sd_notify(0, absl::StrCat("STOPPING=1\nSTATUS=", status).c_str());
}

absl::Duration WatchdogTimeout() {
  std::uint64_t microseconds = 0;
  if (sd_watchdog_enabled(0, &microseconds) <= 0) return absl::InfiniteDuration();
  return absl::Microseconds(microseconds);
}

Watchdog::Watchdog(absl::Duration timeout, std::function<void(std::function<void()>)> ask,
                   std::function<void()> feed)
    : ask_(std::move(ask)), feed_(std::move(feed)) {
  if (timeout < absl::InfiniteDuration()) thread_ = std::thread([this, timeout] { Run(timeout); });
}

Watchdog::Watchdog(std::function<void(std::function<void()>)> ask)
    : Watchdog(WatchdogTimeout(), std::move(ask), [] { sd_notify(0, "WATCHDOG=1"); }) {}

Watchdog::~Watchdog() {
  {
    absl::MutexLock lock(&mutex_);
    ended_ = true;
  }
  end_.SignalAll();
  if (thread_.joinable()) thread_.join();
}

void Watchdog::Run(absl::Duration timeout) {
  // The answer shares this, for it may come when the watchdog is gone.
  const auto answered = std::make_shared<std::atomic<bool>>(true);
  absl::MutexLock lock(&mutex_);
  while (!ended_) {
    if (answered->exchange(false)) {
      feed_();
      ask_([answered] { *answered = true; });
    }
    end_.AwaitFor(mutex_, absl::Condition(&ended_), timeout / 3);
  }
}

}  // namespace takt::daemon
