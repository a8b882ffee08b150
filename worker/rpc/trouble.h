// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace takt::worker_rpc {

// Decides which of many failed attempts are worth a line in the log: the first of each kind of
// trouble, and then one a minute while it lasts.
class Trouble {
 public:
  static constexpr absl::Duration kReminder = absl::Minutes(1);

  // now: of a steady clock.
  bool IsNews(absl::StatusCode code, absl::Duration now) {
    if (code == code_ && said_.has_value() && now - *said_ < kReminder) return false;
    code_ = code;
    said_ = now;
    return true;
  }
  void Over() { said_.reset(); }

 private:
  absl::StatusCode code_ = absl::StatusCode::kOk;
  std::optional<absl::Duration> said_;
};

}  // namespace takt::worker_rpc
