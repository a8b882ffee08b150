// SPDX-License-Identifier: Apache-2.0
// What waits to go up the bulk stream: reports until they are acknowledged, log lines and traces
// while there is room.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/base/log.h"
#include "common/control/job_key.h"
#include "common/control/reports.h"
#include "worker/session/rank_runner.h"

namespace takt::session {

struct BulkOutboxOptions {
  std::size_t max_reports = 1 << 18;  // about 25 MiB
  std::size_t max_logs = 4096;
  std::size_t max_log_bytes = 2048;  // of a line; the rest of it is cut
  std::size_t max_trace_bytes = 8 << 20;
};

// Thread-safe; one reader.
class BulkOutbox {
 public:
  explicit BulkOutbox(BulkOutboxOptions options = {}) : options_(options) {}

  // Reports and log lines are of `key` from now on, reports counted from 1; reports of the job
  // before are dropped.
  void BeginJob(const control::JobKey& key, Rank rank);
  // Blocks while max_reports are unacknowledged, until there is room or EndWaits.
  void AddReport(Report report);
  // Until the next BeginJob AddReport does not block (and drops what does not fit): the job is over
  // anyway.
  void EndWaits();
  // Drops the oldest line when there is no room, and this one before the first job; how many were
  // dropped is said by a line in their place. Never blocks, never logs.
  void AddLog(LogLevel level, std::string_view text, std::int64_t unix_nanos);

  // Of the job that began last. Drops the oldest where there is no room. Never blocks.
  void AddTrace(std::string encoded);

  // A sequence that is not held any more, or of another job, changes nothing.
  void Acknowledge(const control::JobKey& key, std::int64_t sequence);
  bool AllAcknowledged() const;

  // For the stream. Rewind: a new connection; unacknowledged reports go again, in order. Next
  // blocks until there is something to send, nullopt after Interrupt (until the next Rewind).
  void Rewind();
  std::optional<control::BulkMessage> Next();
  void Interrupt();

 private:
  control::LogLine NextLogLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasNextLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return interrupted_ || next_report_ < reports_.size() || !logs_.empty() || !traces_.empty();
  }
  bool HasRoomLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return ended_ || reports_.size() < options_.max_reports;
  }

  const BulkOutboxOptions options_;
  mutable absl::Mutex mutex_;
  control::JobKey key_ ABSL_GUARDED_BY(mutex_);
  Rank rank_ ABSL_GUARDED_BY(mutex_);
  std::int64_t last_sequence_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<Report> reports_ ABSL_GUARDED_BY(mutex_);  // unacknowledged, in order
  std::size_t next_report_ ABSL_GUARDED_BY(mutex_) =
      0;                                      // in reports_: not sent on this connection yet
  StepId last_step_ ABSL_GUARDED_BY(mutex_);  // reported
  std::deque<control::LogLine> logs_ ABSL_GUARDED_BY(mutex_);
  std::int64_t dropped_logs_ ABSL_GUARDED_BY(mutex_) = 0;  // before logs_.front()
  std::deque<control::StepTrace> traces_ ABSL_GUARDED_BY(mutex_);
  std::size_t trace_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool interrupted_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace takt::session
