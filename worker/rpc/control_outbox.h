// SPDX-License-Identifier: Apache-2.0
// What waits to go up the control stream: updates in order, and a heartbeat whenever one is due.
#pragma once

#include <deque>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/control/attachment.h"

namespace takt::rpc {

// Thread-safe; one reader. Belongs to one connection at a time: what was not sent on the one before
// is dropped, because the session tells it again.
class ControlOutbox {
 public:
  // A new connection: empty, silent until Welcomed.
  void Begin();
  void Welcomed(absl::Duration heartbeat_interval);
  // Dropped unless welcomed; whether it was taken.
  bool Add(control::WorkerMessage message);
  // One is due now.
  void HeartbeatNow();
  // Blocks. A Heartbeat comes empty: the caller fills it in. nullopt after Interrupt.
  std::optional<control::WorkerMessage> Next();
  void Interrupt();
  // Until everything added was written (the reader came back for more), at most `timeout`.
  void AwaitWritten(absl::Duration timeout);
  bool welcomed() const;

 private:
  mutable absl::Mutex mutex_;
  std::deque<control::WorkerMessage> messages_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;  // what Next returned last
  bool welcomed_ ABSL_GUARDED_BY(mutex_) = false;
  bool interrupted_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Duration interval_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteDuration();
  absl::Time next_heartbeat_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
};

}  // namespace takt::rpc
