// SPDX-License-Identifier: Apache-2.0
// A few threads that share the blocks of one loop.
//
// Why not OpenMP: its barriers are opaque to the thread sanitizer, every thread must take part in
// every loop, and waiting threads spin for milliseconds, which starves the other workers of a
// machine with few cores. Here a thread that comes late finds no block left and nobody waits for
// it.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace takt::backend {

// Owned by one backend; the destructor joins the threads. Thread: one caller of ParallelFor at a
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
  // all are done. Everything a body wrote is visible to the caller then. Bodies run with denormals
  // flushed to zero, on every thread alike.
  void ParallelFor(std::int64_t blocks, Body body);

 private:
  void ThreadMain(int thread);
  // Takes blocks of the current loop until none is left.
  void RunBlocks(int thread);

  static constexpr std::uint64_t kLeftMask = 0xffffffff;

  // Of the current loop: written by the caller while no block is left and all taken ones are done,
  // read by whoever took one.
  const Body* body_ = nullptr;
  std::int64_t blocks_ = 0;

  // Loop number (high half, so that a late thread cannot take a block of a loop it did not look at)
  // and blocks left (low half).
  alignas(64) std::atomic<std::uint64_t> work_{0};
  alignas(64) std::atomic<std::int32_t> done_{0};  // blocks finished
  alignas(64) std::atomic<std::int32_t> signal_{
      0};  // grows with every loop and at the end; idle threads sleep on it
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

}  // namespace takt::backend
