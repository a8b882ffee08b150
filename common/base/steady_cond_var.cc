// SPDX-License-Identifier: Apache-2.0
#include "common/base/steady_cond_var.h"

#include <algorithm>
#include <chrono>

namespace takt {
namespace {

// std::condition_variable_any knows a mutex by these names.
struct Lockable {
  absl::Mutex& mutex;
  void lock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex.Lock(); }
  void unlock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex.Unlock(); }
};

// A longer wait would overflow the clock.
constexpr absl::Duration kLongest = absl::Hours(24 * 365);

}  // namespace

bool SteadyCondVar::AwaitFor(absl::Mutex& mutex, const absl::Condition& condition,
                             absl::Duration timeout) {
  using std::chrono::steady_clock;
  const auto deadline = steady_clock::now() + absl::ToChronoNanoseconds(std::clamp(
                                                  timeout, absl::ZeroDuration(), kLongest));
  Lockable lockable{mutex};
  while (!condition.Eval()) {
    if (steady_clock::now() >= deadline) return false;
    changed_.wait_until(lockable, deadline);
  }
  return true;
}

}  // namespace takt
