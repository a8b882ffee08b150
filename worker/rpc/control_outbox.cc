// SPDX-License-Identifier: Apache-2.0
#include "worker/rpc/control_outbox.h"

#include <utility>

#include "common/base/clock.h"

namespace takt::worker_rpc {

absl::Duration NextBeat(absl::Duration now, absl::Duration interval) {
  return absl::Ceil(now + interval / 4, interval);
}

void ControlOutbox::Begin() {
  absl::MutexLock lock(&mutex_);
  messages_.clear();
  writing_ = false;
  welcomed_ = false;
  interrupted_ = false;
  next_heartbeat_ = absl::InfiniteDuration();
  changed_.SignalAll();
}

void ControlOutbox::Welcomed(absl::Duration heartbeat_interval) {
  absl::MutexLock lock(&mutex_);
  welcomed_ = true;
  interval_ = heartbeat_interval;
  next_heartbeat_ = NextBeat(SteadyNow(), interval_);
  changed_.SignalAll();
}

bool ControlOutbox::Add(control::WorkerMessage message) {
  absl::MutexLock lock(&mutex_);
  const bool up = welcomed_ && !interrupted_;
  if (up) messages_.push_back(std::move(message));
  changed_.SignalAll();
  return up;
}

void ControlOutbox::HeartbeatNow() { Add(control::Heartbeat()); }

std::optional<control::WorkerMessage> ControlOutbox::Next() {
  absl::MutexLock lock(&mutex_);
  writing_ = false;
  changed_.SignalAll();
  const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return interrupted_ || welcomed_;
  };
  mutex_.Await(absl::Condition(&ready));
  const auto some = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return interrupted_ || !messages_.empty();
  };
  const bool woken =
      changed_.AwaitFor(mutex_, absl::Condition(&some), next_heartbeat_ - SteadyNow());
  if (interrupted_) return std::nullopt;
  if (!woken) {
    next_heartbeat_ = NextBeat(SteadyNow(), interval_);
    return control::Heartbeat();
  }
  control::WorkerMessage message = std::move(messages_.front());
  messages_.pop_front();
  writing_ = true;
  return message;
}

void ControlOutbox::Interrupt() {
  absl::MutexLock lock(&mutex_);
  interrupted_ = true;
  welcomed_ = false;
  changed_.SignalAll();
}

void ControlOutbox::AwaitWritten(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto written = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return interrupted_ || (messages_.empty() && !writing_);
  };
  changed_.AwaitFor(mutex_, absl::Condition(&written), timeout);
}

bool ControlOutbox::welcomed() const {
  absl::MutexLock lock(&mutex_);
  return welcomed_;
}

}  // namespace takt::worker_rpc
