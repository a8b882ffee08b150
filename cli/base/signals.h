// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>

#include <functional>
#include <initializer_list>
#include <thread>
#include <utility>
#include <vector>

namespace takt::cli {

// Handles signals on a thread of its own, so that the handler may do anything. There is at most one
// object at a time. The destructor joins the thread and restores the earlier handlers. A child that
// execs starts with the default handling.
class SignalThread final {
 public:
  // Calls `on_signal` on that thread, for one signal at a time.
  SignalThread(std::initializer_list<int> signals, std::function<void(int)> on_signal);
  ~SignalThread();
  SignalThread(const SignalThread&) = delete;
  SignalThread& operator=(const SignalThread&) = delete;

 private:
  int pipe_[2];  // carries signal numbers, a byte each; 0 ends the thread
  std::vector<std::pair<int, struct sigaction>> before_;
  std::thread thread_;
};

}  // namespace takt::cli
