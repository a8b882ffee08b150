// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cpu/thread_team.h"

#include <limits>
#include <mutex>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace takt::backend {
namespace {

TEST(ThreadTeam, RunsEveryBlockOnceWhateverTheSize) {
  for (const int size : {1, 2, 3, 5}) {
    ThreadTeam team(size);
    for (const std::int64_t blocks : {0, 1, 2, 3, 7, 1000}) {
      std::vector<int> runs(static_cast<std::size_t>(blocks));
      team.ParallelFor(blocks,
                       [&](std::int64_t block, int) { ++runs[static_cast<std::size_t>(block)]; });
      EXPECT_EQ(runs, std::vector<int>(static_cast<std::size_t>(blocks), 1)) << size << " threads";
    }
  }
}

TEST(ThreadTeam, KeepsConsecutiveLoopsApart) {
  ThreadTeam team(3);
  std::int64_t total = 0;
  for (int loop = 0; loop < 20000; ++loop) {
    std::int64_t values[4] = {};
    team.ParallelFor(4, [&](std::int64_t block, int) { values[block] = loop + block; });
    for (const std::int64_t value : values) total += value - loop;
  }
  EXPECT_EQ(total, 20000 * (0 + 1 + 2 + 3));
}

TEST(ThreadTeam, UsesEveryThread) {
  ThreadTeam team(3);
  EXPECT_EQ(team.size(), 3);
  std::mutex mutex;
  std::set<int> seen;
  // Each block waits until another thread came too, so with fewer than three threads the loop would
  // not end.
  std::atomic<int> inside{0};
  team.ParallelFor(3, [&](std::int64_t, int thread) {
    ++inside;
    while (inside < 3) std::this_thread::yield();
    const std::lock_guard<std::mutex> lock(mutex);
    seen.insert(thread);
  });
  EXPECT_EQ(seen, (std::set<int>{0, 1, 2}));
}

TEST(ThreadTeam, FlushesDenormalsOnEveryThreadAndRestoresTheCaller) {
  ThreadTeam team(2);
  volatile float tiny = std::numeric_limits<float>::min();
  std::vector<float> halves(64, -1);
  team.ParallelFor(
      64, [&](std::int64_t block, int) { halves[static_cast<std::size_t>(block)] = tiny / 2; });
  EXPECT_EQ(halves, std::vector<float>(64, 0));
  EXPECT_GT(tiny / 2, 0);
}

}  // namespace
}  // namespace takt::backend
