// SPDX-License-Identifier: Apache-2.0
#include "worker/rpc/control_outbox.h"

#include <utility>

#include "absl/time/clock.h"

namespace takt::rpc {

void ControlOutbox::Begin() {
  absl::MutexLock lock(&mutex_);
  requests_.clear();
  writing_ = false;
  welcomed_ = false;
  interrupted_ = false;
  next_heartbeat_ = absl::InfiniteFuture();
}

void ControlOutbox::Welcomed(absl::Duration heartbeat_interval) {
  absl::MutexLock lock(&mutex_);
  welcomed_ = true;
  interval_ = heartbeat_interval;
  next_heartbeat_ = absl::Now() + interval_;
}

bool ControlOutbox::Add(v1::AttachRequest request) {
  absl::MutexLock lock(&mutex_);
  const bool up = welcomed_ && !interrupted_;
  if (up) requests_.push_back(std::move(request));
  return up;
}

void ControlOutbox::HeartbeatNow() { Add(v1::AttachRequest()); }

std::optional<v1::AttachRequest> ControlOutbox::Next() {
  absl::MutexLock lock(&mutex_);
  writing_ = false;
  const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return interrupted_ || welcomed_;
  };
  mutex_.Await(absl::Condition(&ready));
  const auto some = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return interrupted_ || !requests_.empty();
  };
  const bool woken = mutex_.AwaitWithDeadline(absl::Condition(&some), next_heartbeat_);
  if (interrupted_) return std::nullopt;
  if (!woken) {
    next_heartbeat_ = absl::Now() + interval_;
    return v1::AttachRequest();
  }
  v1::AttachRequest request = std::move(requests_.front());
  requests_.pop_front();
  writing_ = true;
  return request;
}

void ControlOutbox::Interrupt() {
  absl::MutexLock lock(&mutex_);
  interrupted_ = true;
  welcomed_ = false;
}

void ControlOutbox::AwaitWritten(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto written = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return interrupted_ || (requests_.empty() && !writing_);
  };
  mutex_.AwaitWithTimeout(absl::Condition(&written), timeout);
}

bool ControlOutbox::welcomed() const {
  absl::MutexLock lock(&mutex_);
  return welcomed_;
}

}  // namespace takt::rpc
