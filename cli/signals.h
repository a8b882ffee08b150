// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>

#include <functional>
#include <initializer_list>
#include <thread>

namespace takt::cli {

// Takes signals on a thread of its own, so that the handler may do anything. Made before other
// threads are, in the main thread: they inherit that the signals are blocked. A child process must
// unblock them. The destructor joins the thread and gives the signals back to the calling thread.
class SignalThread final {
 public:
  // on_signal: called on that thread, one signal at a time.
  SignalThread(std::initializer_list<int> signals, std::function<void(int)> on_signal);
  ~SignalThread();
  SignalThread(const SignalThread&) = delete;
  SignalThread& operator=(const SignalThread&) = delete;

 private:
  void Run(const std::function<void(int)>& on_signal) const;

  sigset_t signals_;
  sigset_t signals_before_;
  int signal_fd_ = -1;
  int stop_fd_ = -1;
  std::thread thread_;
};

}  // namespace takt::cli
