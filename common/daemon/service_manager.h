// SPDX-License-Identifier: Apache-2.0
// Tells systemd about this process (sd_notify(3)): ready, stopping, alive. Without a service
// manager every call does nothing.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/steady_cond_var.h"

namespace takt::daemon {

// Tells that the process serves. `status` is a line for `systemctl status`.
void NotifyReady(const std::string& status);
void NotifyStopping(const std::string& status);

// Returns how long the service manager waits for a sign of life. It is infinite if there is no
// watchdog.
absl::Duration WatchdogTimeout();

// Feeds the watchdog for as long as the one thread that decides things answers. If that thread
// hangs, the service manager ends the process and starts another.
class Watchdog {
 public:
  // ask(answer): makes the deciding thread call `answer`, and must not block. It is called every
  // third of `timeout`, the next time only after the answer. feed: tells that all is well.
  Watchdog(absl::Duration timeout, std::function<void(std::function<void()> answer)> ask,
           std::function<void()> feed);
  // Takes the service manager's timeout and feeds the service manager.
  explicit Watchdog(std::function<void(std::function<void()> answer)> ask);
  ~Watchdog();

 private:
  void Run(absl::Duration timeout);

  const std::function<void(std::function<void()>)> ask_;
  const std::function<void()> feed_;
  absl::Mutex mutex_;
  SteadyCondVar end_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // there is none without a timeout
};

}  // namespace takt::daemon
