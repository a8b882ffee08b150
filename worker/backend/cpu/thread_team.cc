// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cpu/thread_team.h"

#include <pthread.h>

#include <string>

#include "common/base/status.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace takt::backend {
namespace {

// This takes about 10 microseconds on current cores: longer than the gap between two ops of a
// layer, and short beside a time slice.
constexpr int kSpins = 200;

void Pause() {
#if defined(__SSE2__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

// A denormal costs a hundred cycles, and there are many of them (second moments of unused embedding
// rows).
class FlushDenormals {
 public:
#if defined(__SSE2__)
  FlushDenormals() : saved_(_mm_getcsr()) {
    _mm_setcsr(saved_ | 0x8040);
  }  // flush to zero, denormals are zero
  ~FlushDenormals() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#else
  FlushDenormals() = default;
#endif
};

}  // namespace

ThreadTeam::ThreadTeam(int size) {
  TAKT_CHECK(size >= 1);
  for (int i = 1; i < size; ++i) {
    threads_.emplace_back([this, i] { ThreadMain(i); });
    pthread_setname_np(threads_.back().native_handle(), ("takt-cpu-" + std::to_string(i)).c_str());
  }
}

ThreadTeam::~ThreadTeam() {
  stop_.store(true);
  signal_.fetch_add(1);
  signal_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadTeam::ParallelFor(std::int64_t blocks, Body body) {
  if (blocks <= 0) return;
  TAKT_CHECK(blocks <= INT32_MAX);
  const FlushDenormals flush;
  if (threads_.empty() || blocks == 1) {
    for (std::int64_t i = 0; i < blocks; ++i) body(i, 0);
    return;
  }
  body_ = &body;
  blocks_ = blocks;
  done_.store(0, std::memory_order_relaxed);
  const std::uint64_t loop = (work_.load(std::memory_order_relaxed) >> 32) + 1;
  work_.store(loop << 32 | static_cast<std::uint64_t>(blocks), std::memory_order_release);
  signal_.fetch_add(1);
  signal_.notify_all();

  RunBlocks(0);
  const auto all = static_cast<std::int32_t>(blocks);
  for (int i = 0; i < kSpins && done_.load(std::memory_order_acquire) != all; ++i) Pause();
  for (std::int32_t done; (done = done_.load(std::memory_order_acquire)) != all;) done_.wait(done);
}

void ThreadTeam::RunBlocks(int thread) {
  std::uint64_t work = work_.load(std::memory_order_acquire);
  while ((work & kLeftMask) != 0) {
    if (!work_.compare_exchange_weak(work, work - 1, std::memory_order_acq_rel)) continue;
    // This thread holds a block, so the loop cannot end before that is done, and body_ and blocks_
    // do not change.
    const std::int32_t all = static_cast<std::int32_t>(blocks_);
    (*body_)(all - static_cast<std::int64_t>(work & kLeftMask), thread);
    if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == all) done_.notify_one();
    work = work_.load(std::memory_order_acquire);
  }
}

void ThreadTeam::ThreadMain(int thread) {
  const FlushDenormals flush;
  while (true) {
    const std::int32_t seen = signal_.load();
    if (stop_.load()) return;
    RunBlocks(thread);
    for (int i = 0; i < kSpins && signal_.load(std::memory_order_relaxed) == seen; ++i) Pause();
    signal_.wait(seen);
  }
}

}  // namespace takt::backend
