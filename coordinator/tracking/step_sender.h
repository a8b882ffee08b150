// SPDX-License-Identifier: Apache-2.0
// Brings steps to a tracking server on a thread of its own. It looks for new ones every two
// seconds, and less often while the server is away: at least every five minutes.
#pragma once

#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/steady_cond_var.h"
#include "coordinator/tracking/deliveries.h"

namespace takt::tracking {

// Ends when it is destroyed, after the request that it makes. If the server did not fail last, it
// then delivers what is new since.
class StepSender final {
 public:
  // jobs: returns all jobs as last published; it is called on the sender's thread. The others are
  // borrowed.
  StepSender(Tracker* tracker, store::Store* store, std::function<Deliveries::Jobs()> jobs);
  ~StepSender();

 private:
  void Loop();
  // Returns true if the sender is to end.
  bool Rest(absl::Duration time);

  const std::function<Deliveries::Jobs()> jobs_;
  Deliveries deliveries_;  // of the thread
  absl::Mutex mutex_;
  SteadyCondVar stop_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace takt::tracking
