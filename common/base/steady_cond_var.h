// SPDX-License-Identifier: Apache-2.0
// Timed waits that do not depend on the wall clock. The timed waits of this Abseil do: if the clock
// is set back by an hour, they last an hour longer (docs/footguns.md).
#pragma once

#include <condition_variable>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace takt {

// Thread-safe. It belongs to one mutex. Whoever changes what a wait may depend on calls SignalAll
// afterwards, with or without the mutex.
class SteadyCondVar final {
 public:
  // Waits until `condition` is true, or until `timeout` has passed on the steady clock. Returns
  // whether it is true. Replaces absl::Mutex::AwaitWithTimeout.
  bool AwaitFor(absl::Mutex& mutex, const absl::Condition& condition, absl::Duration timeout)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void SignalAll() { changed_.notify_all(); }

 private:
  std::condition_variable_any changed_;
};

}  // namespace takt
