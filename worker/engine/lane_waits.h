// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "worker/engine/lane.h"

namespace takt::engine {

// How long a waiter spins. Another lane is usually milliseconds away, or about to finish, and many
// ranks share the cores.
inline constexpr std::int64_t kSpinNanos = 2'000;

// Lets threads wait for lanes, and lanes wake them. Thread-safe.
class LaneWaits {
 public:
  // lanes, stopped: borrowed. Whoever sets `stopped` must wake all waiters.
  LaneWaits(const std::vector<std::unique_ptr<Lane>>& lanes, const std::atomic<bool>& stopped)
      : lanes_(lanes), stopped_(stopped) {}

  // Waits for everything that the entry waits for. Meanwhile `waiter.activity` says which of its
  // waits it is at. Returns false if the engine was stopped.
  bool AwaitOthers(Waiter& waiter, const LaneEntry& entry, std::uint64_t iteration) const;
  // Waits until `lane` has done `count`. Returns false if the engine was stopped.
  bool AwaitLane(Waiter& waiter, Lane& lane, std::uint64_t count) const;
  // Wakes the threads that wait until `lane` has done `done`. Precondition: it has.
  void WakeWaiters(const Lane& lane, std::uint64_t done) const;

 private:
  bool stopped() const { return stopped_.load(std::memory_order_seq_cst); }

  const std::vector<std::unique_ptr<Lane>>& lanes_;
  const std::atomic<bool>& stopped_;
};

}  // namespace takt::engine
