// SPDX-License-Identifier: Apache-2.0
// A TCP connection's man in the middle, who writes down what the one in front of him is told.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <thread>

#include "common/net/socket.h"

namespace takt::security {

// Passes bytes on between whoever connects and `upstream`, until its end.
class Recorder {
 public:
  explicit Recorder(std::string upstream);
  ~Recorder();

  // What to dial instead of upstream.
  const std::string& address() const { return address_; }
  // What came from upstream so far.
  std::string heard();

 private:
  void Run();

  const std::string upstream_;
  const net::Socket listener_, end_;
  const std::string address_;
  std::mutex mutex_;
  std::string heard_;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace takt::security
