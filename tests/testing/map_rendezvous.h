// SPDX-License-Identifier: Apache-2.0
// Where ranks that are threads of one test find each other.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>

#include "absl/strings/str_cat.h"
#include "worker/transport/transport.h"

namespace takt::testing {

class MapRendezvous final : public transport::Rendezvous {
 public:
  absl::Status Set(const std::string& key, const std::string& value) override {
    std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> Wait(const std::string& key, absl::Duration timeout) override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, absl::ToChronoNanoseconds(timeout),
                           [&] { return values_.count(key) != 0; })) {
      return absl::DeadlineExceededError(absl::StrCat("no key ", key));
    }
    return values_[key];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

}  // namespace takt::testing
