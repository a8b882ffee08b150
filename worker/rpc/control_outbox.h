// SPDX-License-Identifier: Apache-2.0
// Keeps the messages that wait for the control stream, in order, and makes a heartbeat whenever one
// is due.
#pragma once

#include <deque>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/steady_cond_var.h"
#include "common/control/attachment.h"

namespace takt::worker_rpc {

// Returns when the next heartbeat is due, after a quarter of an interval to five quarters: at a
// whole multiple of the interval on the steady clock. All workers of a host share this clock, so
// their heartbeats come together, and their relay passes them on in one frame.
absl::Duration NextBeat(absl::Duration now, absl::Duration interval);

// Thread-safe; one caller at a time calls Next. It belongs to one connection at a time: what was
// not sent on the one before is dropped, because the session sends it again.
class ControlOutbox {
 public:
  // Begins a new connection. The outbox is empty, and sends nothing until Welcomed.
  void Begin();
  void Welcomed(absl::Duration heartbeat_interval);
  // Drops the message unless welcomed. Returns whether it was added.
  bool Add(control::WorkerMessage message);
  // Adds a heartbeat.
  void HeartbeatNow();
  // Blocks for the next message. A Heartbeat is returned empty, and the caller fills it in. Returns
  // nullopt after Interrupt.
  std::optional<control::WorkerMessage> Next();
  void Interrupt();
  // Waits until everything that was added was written (the caller of Next asked for more), at most
  // `timeout`.
  void AwaitWritten(absl::Duration timeout);
  bool welcomed() const;

 private:
  mutable absl::Mutex mutex_;
  SteadyCondVar changed_;
  std::deque<control::WorkerMessage> messages_ ABSL_GUARDED_BY(mutex_);
  // Whether the message that Next returned last is being written.
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool welcomed_ ABSL_GUARDED_BY(mutex_) = false;
  bool interrupted_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Duration interval_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteDuration();
  absl::Duration next_heartbeat_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteDuration();  // steady
};

}  // namespace takt::worker_rpc
