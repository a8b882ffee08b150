// SPDX-License-Identifier: Apache-2.0
#include "worker/transport/wake_word.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <climits>

namespace takt::transport {

namespace {
constexpr std::int64_t kNanosPerSecond = 1'000'000'000;
}

std::int64_t MonotonicNanos() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kNanosPerSecond + now.tv_nsec;
}

bool WakeWord::Sleep(std::uint32_t wakes, std::int64_t deadline) {
  timespec until{static_cast<time_t>(deadline / kNanosPerSecond),
                 static_cast<long>(deadline % kNanosPerSecond)};
  // The bitset form takes an absolute CLOCK_MONOTONIC time. The private form does not fit, because
  // processes may share the word.
  const long rc =
      syscall(SYS_futex, &wakes_, FUTEX_WAIT_BITSET, wakes,
              deadline == kNoDeadline ? nullptr : &until, nullptr, FUTEX_BITSET_MATCH_ANY);
  return !(rc == -1 && errno == ETIMEDOUT);
}

void WakeWord::WakeSleepers() {
  sleeping_.store(0, std::memory_order_seq_cst);
  wakes_.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, &wakes_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace takt::transport
