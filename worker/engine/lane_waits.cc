// SPDX-License-Identifier: Apache-2.0
#include "worker/engine/lane_waits.h"

#include <cstddef>

#include "common/program/program.h"
#include "worker/transport/wake_word.h"

namespace takt::engine {

using transport::kNoDeadline;

bool LaneWaits::AwaitOthers(Waiter& waiter, const LaneEntry& entry, std::uint64_t iteration) const {
  for (std::size_t i = 0; i < entry.waits.size(); ++i) {
    const program::Wait wait = entry.waits[i];
    Lane& other = *lanes_[wait.lane.value()];
    // A negative position reaches into the iteration before; there is none before the first.
    const std::int64_t count =
        static_cast<std::int64_t>(iteration * other.length()) + wait.position + 1;
    if (count <= 0 ||
        other.done.load(std::memory_order_acquire) >= static_cast<std::uint64_t>(count)) {
      continue;
    }
    waiter.activity.store(static_cast<std::int32_t>(i), std::memory_order_relaxed);
    if (!AwaitLane(waiter, other, static_cast<std::uint64_t>(count))) return false;
  }
  waiter.activity.store(kRunning, std::memory_order_relaxed);
  return !stopped_.load(std::memory_order_relaxed);
}

// The waiter writes what it waits for before it looks for the last time, and the lane writes `done`
// before WakeWaiters looks. So at least one of the two sees what the other one wrote.
bool LaneWaits::AwaitLane(Waiter& waiter, Lane& lane, std::uint64_t count) const {
  std::atomic<std::uint64_t>& awaited = lane.awaited[waiter.index];
  awaited.store(count, std::memory_order_seq_cst);
  waiter.woken.Await(
      [&] { return lane.done.load(std::memory_order_seq_cst) >= count || stopped(); }, kNoDeadline,
      kSpinNanos);
  awaited.store(kNothingAwaited, std::memory_order_relaxed);
  return !stopped();
}

void LaneWaits::WakeWaiters(const Lane& lane, std::uint64_t done) const {
  for (std::size_t i = 0; i < lane.awaited.size(); ++i) {
    if (lane.awaited[i].load(std::memory_order_seq_cst) > done) continue;
    const std::size_t num_lanes = lanes_.size();
    Lane& waiting = *lanes_[i % num_lanes];
    (i < num_lanes ? waiting.own : waiting.side).woken.Wake();
  }
}

}  // namespace takt::engine
