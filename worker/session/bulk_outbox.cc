// SPDX-License-Identifier: Apache-2.0
#include "worker/session/bulk_outbox.h"

#include <utility>

namespace takt::session {

void BulkOutbox::BeginJob(const JobKey& key, Rank rank) {
  absl::MutexLock lock(&mutex_);
  key_ = key;
  rank_ = rank;
  last_sequence_ = 0;
  reports_.clear();
  next_report_ = 0;
  ended_ = false;
}

void BulkOutbox::AddReport(Report report) {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &BulkOutbox::HasRoomLocked));
  if (reports_.size() >= options_.max_reports) return;
  reports_.push_back({key_, ++last_sequence_, std::move(report)});
}

void BulkOutbox::EndWaits() {
  absl::MutexLock lock(&mutex_);
  ended_ = true;
}

void BulkOutbox::AddLog(LogLevel level, std::string_view text, std::int64_t unix_nanos) {
  absl::MutexLock lock(&mutex_);
  if (key_.job.empty()) return;
  if (logs_.size() >= options_.max_logs) logs_.pop_front();
  logs_.push_back({key_.job, rank_, level, std::string(text), unix_nanos});
}

void BulkOutbox::AddTrace(std::string encoded) {
  absl::MutexLock lock(&mutex_);
  trace_bytes_ += encoded.size();
  traces_.push_back({key_, std::move(encoded)});
  while (trace_bytes_ > options_.max_trace_bytes) {
    trace_bytes_ -= traces_.front().encoded.size();
    traces_.pop_front();
  }
}

void BulkOutbox::Acknowledge(const JobKey& key, std::int64_t sequence) {
  absl::MutexLock lock(&mutex_);
  if (key != key_) return;
  while (!reports_.empty() && reports_.front().sequence <= sequence) {
    reports_.pop_front();
    if (next_report_ > 0) --next_report_;
  }
}

bool BulkOutbox::AllAcknowledged() const {
  absl::MutexLock lock(&mutex_);
  return reports_.empty();
}

void BulkOutbox::Rewind() {
  absl::MutexLock lock(&mutex_);
  next_report_ = 0;
  interrupted_ = false;
}

std::optional<BulkOutbox::Item> BulkOutbox::Next() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &BulkOutbox::HasNextLocked));
  if (interrupted_) return std::nullopt;
  if (next_report_ < reports_.size()) return reports_[next_report_++];
  if (!logs_.empty()) {
    LogRecord record = std::move(logs_.front());
    logs_.pop_front();
    return record;
  }
  TraceRecord trace = std::move(traces_.front());
  traces_.pop_front();
  trace_bytes_ -= trace.encoded.size();
  return trace;
}

void BulkOutbox::Interrupt() {
  absl::MutexLock lock(&mutex_);
  interrupted_ = true;
}

}  // namespace takt::session
