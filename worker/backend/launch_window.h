// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "worker/backend/stream.h"

namespace takt::backend {

// A driver's queue holds about a thousand launches. A thread that fills it blocks inside the driver
// and keeps every other thread from launching, also the one whose message the queue waits for. So
// no more than this many launches, events among them, are outstanding on a device: about half of
// them are the compute stream's. A rank has at most fourteen other streams: those of LOAD and of
// the sums, eight channels (to and from two neighbours, of activations and of gradients), and those
// of the groups in which replicas, tied tables, tensor and context ranks meet.
inline constexpr int kMostLaunchesOfDevice = 512, kMostOtherStreams = 14, kMostLaunchesOfOther = 18;
inline constexpr int kMostLaunchesOfCompute =
    kMostLaunchesOfDevice - kMostOtherStreams * kMostLaunchesOfOther;
constexpr int MostLaunches(StreamKind kind) {
  return kind == StreamKind::kCompute ? kMostLaunchesOfCompute : kMostLaunchesOfOther;
}

// Bounds how far a stream may be given work ahead of what it has done. It records an event now and
// then, and waits for the oldest one before there is too much. A stream waits only for itself, so
// the bound delays no other stream. The stream owns it. Thread: that of the stream, except
// EndWaits.
class LaunchWindow {
 public:
  // stream: borrowed. most: at least 1.
  LaunchWindow(Stream& stream, int most);

  // Counts launches that are about to be given to the stream. Blocks: while they and what is
  // outstanding are more than `most`, unless nothing is outstanding.
  // Errors: those of the stream; kCancelled (EndWaits was called).
  absl::Status Admit(std::int64_t launches);

  // Makes Admit return kCancelled where it waits or would wait. Thread-safe.
  void EndWaits() { ended_.store(true, std::memory_order_relaxed); }

 private:
  struct Mark {
    std::unique_ptr<Event> event;
    std::int64_t given = 0;  // launches before the event
  };

  absl::Status AddMark();
  absl::Status AwaitOldest();

  Stream& stream_;
  const std::int64_t most_, interval_;
  std::int64_t given_ = 0, marked_ = 0;
  std::int64_t done_ = 0;  // at least so many are done
  std::deque<Mark> marks_;
  std::vector<std::unique_ptr<Event>> spare_;
  std::atomic<bool> ended_{false};
};

}  // namespace takt::backend
