// SPDX-License-Identifier: Apache-2.0
// Lets a thread wait for a counter that another thread moves, or another process through shared
// memory: it spins briefly, then sleeps on a futex. Moving the counter costs one load when no
// thread sleeps.
//
//   waiter:  Await([&] { return counter.load() >= n; }, deadline)
//   mover:   counter.store(n);  word.Wake();
//
// No wake is lost. The waiter announces its sleep before it looks for the last time, and the mover
// checks for sleepers after it has moved; both operations are sequentially consistent. The waiter
// sleeps on the number of wakes, which it reads before the announcement, so a wake between its last
// look and its sleep changes that number, whatever other waiters do to the flag meanwhile.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>

namespace takt::transport {

// Nanoseconds of CLOCK_MONOTONIC.
std::int64_t MonotonicNanos();

inline constexpr std::int64_t kNoDeadline = std::numeric_limits<std::int64_t>::max();

// It has standard layout and is valid when zero, so it may lie in shared memory. Any number of
// waiters and movers may use it.
class WakeWord {
 public:
  // Waits until `ready()` holds.  deadline: MonotonicNanos, or kNoDeadline.  spin_nanos: how long
  // to look before sleeping. False: the deadline came first.  `ready` must also hold when the
  // waiter is to give up for other reasons.
  template <class Ready>
  bool Await(Ready&& ready, std::int64_t deadline, std::int64_t spin_nanos) {
    if (ready()) return true;
    if (spin_nanos > 0 && Spin(ready, spin_nanos)) return true;
    for (;;) {
      const std::uint32_t wakes = wakes_.load(std::memory_order_seq_cst);
      sleeping_.store(1, std::memory_order_seq_cst);
      if (ready()) return true;
      const bool in_time = Sleep(wakes, deadline);
      if (ready()) return true;
      if (!in_time) return false;
    }
  }

  // Call after the change that a waiter may be waiting for (a sequentially consistent store, or one
  // before a fence).
  void Wake() {
    if (sleeping_.load(std::memory_order_seq_cst) != 0) WakeSleepers();
  }

  // Does the same even where a mover of another process seems to have done it. That process may
  // have stopped after it took back the announcement of a sleep, and before it woke the sleeper.
  void WakeAfterAll() { WakeSleepers(); }

 private:
  template <class Ready>
  static bool Spin(Ready& ready, std::int64_t spin_nanos) {
    constexpr int kLooksPerClock = 16;
    const std::int64_t end = MonotonicNanos() + spin_nanos;
    do {
      for (int i = 0; i < kLooksPerClock; ++i) {
        __builtin_ia32_pause();
        if (ready()) return true;
      }
    } while (MonotonicNanos() < end);
    return false;
  }
  // Sleeps until the number of wakes is not `wakes`, or for no reason. Returns false after the
  // deadline.
  bool Sleep(std::uint32_t wakes, std::int64_t deadline);
  void WakeSleepers();

  std::atomic<std::uint32_t> sleeping_{0};
  std::atomic<std::uint32_t> wakes_{0};
  static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
};

}  // namespace takt::transport
