// SPDX-License-Identifier: Apache-2.0
// Keeps what waits for the bulk stream. Reports are kept until the coordinator acknowledges
// them; log lines and traces are kept while there is room.
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
  std::size_t max_log_bytes = 2048;  // longer lines are cut
  std::size_t max_trace_bytes = 8 << 20;
};

// Thread-safe. One caller at a time calls Next.
class BulkOutbox {
 public:
  explicit BulkOutbox(BulkOutboxOptions options = {}) : options_(options) {}

  // Makes later reports and log lines belong to `key`. Its reports are numbered from 1. Reports of
  // the job before are dropped.
  void BeginJob(const control::JobKey& key, Rank rank);
  // Blocks while max_reports are unacknowledged, until there is room or EndWaits is called.
  void AddReport(Report report);
  // Called when the job is over: until the next BeginJob, AddReport does not block, and drops what
  // has no room.
  void EndWaits();
  // Drops the oldest line when there is no room, and drops this one if no job has begun. A line in
  // their place says how many were dropped. Never blocks, never logs.
  void AddLog(LogLevel level, std::string_view text, std::int64_t unix_nanos);

  // Adds a trace of the job that began last. Drops the oldest traces when there is no room. Never
  // blocks.
  void AddTrace(std::string encoded);

  // Forgets the reports up to `sequence`. A sequence that is not held any more, or that belongs to
  // another job, changes nothing.
  void Acknowledge(const control::JobKey& key, std::int64_t sequence);
  bool AllAcknowledged() const;

  // Makes the report of this checkpoint one of a failure, if it is not acknowledged. Returns
  // whether it did.
  bool Withdraw(StepId checkpoint, const std::string& error);

  // The newest step and the newest checkpoint of the job whose reports were acknowledged; 0: none.
  struct Acknowledged {
    StepId step, checkpoint;
  };
  Acknowledged acknowledged() const;

  // For the stream. Rewind begins a new connection: unacknowledged reports are sent again, in
  // order. Next blocks until there is something to send; after Interrupt it returns nullopt until
  // the next Rewind.
  void Rewind();
  // Sends unacknowledged reports again, in order, on the connection that is up.
  void Resend();
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
  // Position in reports_ of the first one not yet sent on this connection.
  std::size_t next_report_ ABSL_GUARDED_BY(mutex_) = 0;
  StepId last_step_ ABSL_GUARDED_BY(mutex_);  // the newest that was reported
  Acknowledged acknowledged_ ABSL_GUARDED_BY(mutex_);
  std::deque<control::LogLine> logs_ ABSL_GUARDED_BY(mutex_);
  std::int64_t dropped_logs_ ABSL_GUARDED_BY(mutex_) = 0;  // since the line before logs_.front()
  std::deque<control::StepTrace> traces_ ABSL_GUARDED_BY(mutex_);
  std::size_t trace_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool interrupted_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace takt::session
