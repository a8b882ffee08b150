// SPDX-License-Identifier: Apache-2.0
// A few threads that share the blocks of one loop.
//
// It replaces OpenMP, whose barriers are opaque to the thread sanitizer, whose threads must all
// take part in every loop, and whose waiting threads spin for milliseconds, which starves the other
// workers of a machine with few cores. Here a thread that comes late finds no block left, and no
// thread waits for it.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace takt::backend {

// Belongs to one backend; the destructor joins the threads. Thread: one caller of ParallelFor at a
// time, never from a body.
class ThreadTeam {
 public:
  // body(block, thread): thread is 0 for the caller and below size().
  using Body = absl::FunctionRef<void(std::int64_t block, int thread)>;

  // Creates size - 1 threads; the caller of ParallelFor is the other one.
  explicit ThreadTeam(int size);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const { return static_cast<int>(threads_.size()) + 1; }

  // Calls body once for each block in [0, blocks), blocks < 2^32, in any order, and returns when
  // all are done. The caller then sees everything that a body wrote. Bodies run with denormals
  // flushed to zero, on every thread alike.
  void ParallelFor(std::int64_t blocks, Body body);

 private:
  void ThreadMain(int thread);
  // Takes blocks of the current loop until none is left.
  void RunBlocks(int thread);

  static constexpr std::uint64_t kLeftMask = 0xffffffff;

  // The current loop. The caller writes these while no block is left and all taken ones are done; a
  // thread that took a block reads them.
  const Body* body_ = nullptr;
  std::int64_t blocks_ = 0;

  // The number of the loop (high half) and the blocks left (low half). The number keeps a late
  // thread from taking a block of a loop that it did not look at.
  alignas(64) std::atomic<std::uint64_t> work_{0};
  alignas(64) std::atomic<std::int32_t> done_{0};  // blocks finished
  // Grows with every loop and at the end; idle threads sleep on it.
  alignas(64) std::atomic<std::int32_t> signal_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

}  // namespace takt::backend
