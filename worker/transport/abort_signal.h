// SPDX-License-Identifier: Apache-2.0
// Stops everything in one transport: it has a flag that every wait checks, and hooks that wake the
// waits.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <mutex>

namespace takt::transport {

// Thread-safe.
class AbortSignal {
 public:
  // Its destructor removes the hook. Afterwards the hook does not run and never will.
  class Registration {
   public:
    Registration() = default;
    Registration(Registration&& other) noexcept { *this = std::move(other); }
    Registration& operator=(Registration&& other) noexcept;
    ~Registration() { Reset(); }
    void Reset();

   private:
    friend class AbortSignal;
    using Place = std::list<std::function<void()>>::iterator;
    AbortSignal* signal_ = nullptr;
    Place place_;
  };

  bool raised() const { return raised_.load(std::memory_order_seq_cst); }

  // Sets the flag, then runs every hook. Idempotent.
  void Raise();

  // wake: runs once when the signal is raised, or at once if it is raised already. It must be short
  // and must not call this object.
  [[nodiscard]] Registration OnRaise(std::function<void()> wake);

 private:
  std::atomic<bool> raised_{false};
  // It is held while hooks run, so that a hook never outlives what it wakes.
  std::mutex mutex_;
  std::list<std::function<void()>> hooks_;
};

}  // namespace takt::transport
