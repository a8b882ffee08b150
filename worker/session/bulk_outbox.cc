// SPDX-License-Identifier: Apache-2.0
#include "worker/session/bulk_outbox.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/bounded_text.h"
#include "common/base/counted.h"

namespace takt::session {
namespace {

std::int64_t SequenceOf(const Report& report) {
  return std::visit([](const auto& part) { return part.sequence; }, report);
}

}  // namespace

void BulkOutbox::BeginJob(const control::JobKey& key, Rank rank) {
  absl::MutexLock lock(&mutex_);
  key_ = key;
  rank_ = rank;
  last_sequence_ = 0;
  last_step_ = StepId(0);
  acknowledged_ = {};
  reports_.clear();
  next_report_ = 0;
  ended_ = false;
}

void BulkOutbox::AddReport(Report report) {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &BulkOutbox::HasRoomLocked));
  if (reports_.size() >= options_.max_reports) return;
  if (const auto* step = std::get_if<control::RankStepReport>(&report)) last_step_ = step->step;
  const control::JobKey key = key_;
  const std::int64_t sequence = ++last_sequence_;
  std::visit(
      [&key, sequence](auto& part) {
        part.key = key;
        part.sequence = sequence;
      },
      report);
  reports_.push_back(std::move(report));
}

void BulkOutbox::EndWaits() {
  absl::MutexLock lock(&mutex_);
  ended_ = true;
}

void BulkOutbox::AddLog(LogLevel level, std::string_view text, std::int64_t unix_nanos) {
  absl::MutexLock lock(&mutex_);
  if (key_.job.empty()) return;
  if (logs_.size() >= options_.max_logs) {
    logs_.pop_front();
    ++dropped_logs_;
  }
  logs_.push_back({.job = key_.job,
                   .rank = rank_,
                   .step = last_step_,
                   .level = level,
                   .text = std::string(FirstBytes(text, options_.max_log_bytes)),
                   .unix_nanos = unix_nanos});
}

void BulkOutbox::AddTrace(std::string encoded) {
  absl::MutexLock lock(&mutex_);
  trace_bytes_ += encoded.size();
  traces_.push_back({key_, std::move(encoded)});
  while (trace_bytes_ > options_.max_trace_bytes) {
    trace_bytes_ -= traces_.front().trace.size();
    traces_.pop_front();
  }
}

void BulkOutbox::Acknowledge(const control::JobKey& key, std::int64_t sequence) {
  absl::MutexLock lock(&mutex_);
  if (key != key_) return;
  while (!reports_.empty() && SequenceOf(reports_.front()) <= sequence) {
    if (const auto* step = std::get_if<control::RankStepReport>(&reports_.front())) {
      acknowledged_.step = step->step;
    } else {
      acknowledged_.checkpoint = std::get<control::CheckpointReport>(reports_.front()).step;
    }
    reports_.pop_front();
    if (next_report_ > 0) --next_report_;
  }
}

bool BulkOutbox::AllAcknowledged() const {
  absl::MutexLock lock(&mutex_);
  return reports_.empty();
}

bool BulkOutbox::Withdraw(StepId checkpoint, const std::string& error) {
  absl::MutexLock lock(&mutex_);
  for (Report& report : reports_) {
    auto* const part = std::get_if<control::CheckpointReport>(&report);
    if (part == nullptr || part->step != checkpoint) continue;
    part->files.clear();
    if (part->error.empty()) part->error = error;
    return true;
  }
  return false;
}

BulkOutbox::Acknowledged BulkOutbox::acknowledged() const {
  absl::MutexLock lock(&mutex_);
  return acknowledged_;
}

void BulkOutbox::Resend() {
  absl::MutexLock lock(&mutex_);
  next_report_ = 0;
}

void BulkOutbox::Rewind() {
  absl::MutexLock lock(&mutex_);
  next_report_ = 0;
  interrupted_ = false;
}

std::optional<control::BulkMessage> BulkOutbox::Next() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &BulkOutbox::HasNextLocked));
  if (interrupted_) return std::nullopt;
  if (next_report_ < reports_.size()) {
    return std::visit([](const auto& part) { return control::BulkMessage(part); },
                      reports_[next_report_++]);
  }
  if (!logs_.empty()) return NextLogLocked();
  control::StepTrace trace = std::move(traces_.front());
  traces_.pop_front();
  trace_bytes_ -= trace.trace.size();
  return trace;
}

control::LogLine BulkOutbox::NextLogLocked() {
  if (const std::int64_t dropped = std::exchange(dropped_logs_, 0); dropped > 0) {
    control::LogLine gap = logs_.front();
    gap.level = LogLevel::kWarning;
    gap.text = absl::StrCat(Counted(dropped, "line"),
                            dropped == 1 ? " before this one is lost: nobody took it in time"
                                         : " before this one are lost: nobody took them in time");
    return gap;
  }
  control::LogLine record = std::move(logs_.front());
  logs_.pop_front();
  return record;
}

void BulkOutbox::Interrupt() {
  absl::MutexLock lock(&mutex_);
  interrupted_ = true;
}

}  // namespace takt::session
