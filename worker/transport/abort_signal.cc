// SPDX-License-Identifier: Apache-2.0
#include "worker/transport/abort_signal.h"

#include <utility>

namespace takt::transport {

AbortSignal::Registration& AbortSignal::Registration::operator=(Registration&& other) noexcept {
  if (this != &other) {
    Reset();
    signal_ = std::exchange(other.signal_, nullptr);
    place_ = other.place_;
  }
  return *this;
}

void AbortSignal::Registration::Reset() {
  if (signal_ == nullptr) return;
  std::lock_guard lock(signal_->mutex_);
  signal_->hooks_.erase(place_);
  signal_ = nullptr;
}

void AbortSignal::Raise() {
  std::lock_guard lock(mutex_);
  if (raised_.exchange(true, std::memory_order_seq_cst)) return;
  for (auto& wake : hooks_) wake();
}

AbortSignal::Registration AbortSignal::OnRaise(std::function<void()> wake) {
  std::lock_guard lock(mutex_);
  if (raised()) wake();
  Registration registration;
  registration.place_ = hooks_.insert(hooks_.end(), std::move(wake));
  registration.signal_ = this;
  return registration;
}

}  // namespace takt::transport
