// SPDX-License-Identifier: Apache-2.0
// One transport's "stop everything": a flag that every wait looks at, and hooks that wake those
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
  // Removes its hook when it goes; afterwards the hook is not running and never will.
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

  // wake: runs once at the raise, or at once if that was before; short, and must not come back to
  // this object.
  [[nodiscard]] Registration OnRaise(std::function<void()> wake);

 private:
  std::atomic<bool> raised_{false};
  // Held while hooks run, so that a hook never outlives what it wakes.
  std::mutex mutex_;
  std::list<std::function<void()>> hooks_;
};

}  // namespace takt::transport
