// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>

#include "worker/transport/wake_word.h"

namespace takt::engine {

// A second thread of a lane. The lane's thread gives it one piece of work at a time and waits until
// it is done. Thread: its owner's.
class SideThread {
 public:
  SideThread();
  ~SideThread();

  // Precondition: Await was called for the last work. What `work` refers to must live until Await
  // returns.
  void Start(std::function<void()> work);
  // Blocks: until the work is done.
  void Await();

 private:
  void Main();

  std::function<void()> work_;  // the thread's between Start and Await, else the owner's
  std::atomic<std::uint64_t> given_{0}, done_{0};
  std::atomic<bool> ended_{false};
  transport::WakeWord given_moved_, done_moved_;
  std::thread thread_;  // last: it uses everything above
};

}  // namespace takt::engine
