// SPDX-License-Identifier: Apache-2.0
// Virtual time. Events happen in the order of their times, and those of one time in the order in
// which they were added.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "absl/time/time.h"

namespace takt::simulation {

// One thread.
class EventLoop final {
 public:
  using Action = std::function<void()>;

  absl::Duration now() const { return now_; }
  // An event in the past happens now.
  void At(absl::Duration when, Action action) {
    events_.emplace(std::pair(std::max(when, now_), ++last_number_), std::move(action));
  }
  void After(absl::Duration delay, Action action) { At(now_ + delay, std::move(action)); }

  // Lets everything happen until `end`. An event may call it: that event is a process that is
  // paused in the middle of what it does, while all others continue.
  void RunUntil(absl::Duration end) {
    ++depth_;
    while (!stopped_ && !events_.empty() && events_.begin()->first.first <= end) {
      auto event = events_.extract(events_.begin());
      now_ = event.key().first;
      ++num_events_;
      event.mapped()();
    }
    if (!stopped_) now_ = std::max(now_, end);
    --depth_;
  }
  // Returns how many calls of RunUntil are in progress.
  int depth() const { return depth_; }

  // Nothing happens any more.
  void Stop() { stopped_ = true; }
  bool stopped() const { return stopped_; }
  std::int64_t num_events() const { return num_events_; }

 private:
  absl::Duration now_ = absl::ZeroDuration();
  std::map<std::pair<absl::Duration, std::int64_t>, Action> events_;
  std::int64_t last_number_ = 0, num_events_ = 0;
  int depth_ = 0;
  bool stopped_ = false;
};

}  // namespace takt::simulation
