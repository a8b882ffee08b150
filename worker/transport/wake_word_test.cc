// SPDX-License-Identifier: Apache-2.0
#include "worker/transport/wake_word.h"

#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace takt::transport {
namespace {

// Each waiter acknowledges each move, and the next move comes only after all have. So a single lost
// wake ends in the deadline. Several waiters on one word fall asleep in each other's wakes.
TEST(WakeWord, NoWakeIsLostWithSeveralWaiters) {
  constexpr int kMoves = 50'000, kWaiters = 3;
  std::atomic<int> moved{0}, acknowledged{0}, lost{0};
  WakeWord move, acknowledgement;
  const auto await = [&](WakeWord& word, const std::atomic<int>& counter, int n) {
    const bool came = word.Await([&] { return counter.load() >= n || lost.load() > 0; },
                                 MonotonicNanos() + 10'000'000'000, 0);
    if (!came) ++lost;
    return came && lost.load() == 0;
  };
  std::vector<std::thread> waiters;
  for (int i = 0; i < kWaiters; ++i) {
    waiters.emplace_back([&] {
      for (int n = 1; n <= kMoves; ++n) {
        if (!await(move, moved, n)) return;
        ++acknowledged;
        acknowledgement.Wake();
      }
    });
  }
  for (int n = 1; n <= kMoves; ++n) {
    moved.store(n);
    move.Wake();
    if (!await(acknowledgement, acknowledged, n * kWaiters)) break;
  }
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_EQ(lost.load(), 0);
}

}  // namespace
}  // namespace takt::transport
