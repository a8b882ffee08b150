// SPDX-License-Identifier: Apache-2.0
// Checks from time to time whether the relay of the host is back, for a worker that fell back to
// connections of its own.
#pragma once

#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/steady_cond_var.h"

namespace takt::worker_rpc {

struct RelayWatchOptions {
  std::function<bool()> is_away;      // whether the worker is attached without the relay
  std::function<absl::Status()> ask;  // returns OK if the relay is ready; may block for seconds
  std::function<void()> go_back;
  // It checks about this often. Each wait is shortened by a random part of at most half, so that
  // the workers of a host do not all go back together.
  absl::Duration interval = absl::Seconds(30);
};

// Runs a thread that checks until the object is destroyed.
class RelayWatch final {
 public:
  explicit RelayWatch(RelayWatchOptions options);
  ~RelayWatch();

 private:
  void Main();

  const RelayWatchOptions options_;
  absl::Mutex mutex_;
  SteadyCondVar end_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace takt::worker_rpc
