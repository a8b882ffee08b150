// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "tests/testing/map_rendezvous.h"
#include "worker/session/abortable_rendezvous.h"

namespace takt::session {

// One rank's view of a map that all ranks of a test share.
class SharedRendezvous final : public AbortableRendezvous {
 public:
  explicit SharedRendezvous(std::shared_ptr<testing::MapRendezvous> map) : map_(std::move(map)) {}
  absl::Status Set(const std::string& key, const std::string& value) override {
    return map_->Set(key, value);
  }
  absl::StatusOr<std::string> Wait(const std::string& key, absl::Duration timeout) override {
    return map_->Wait(key, timeout);
  }
  // Not needed: its waits are short, and the transport checks for an abort between them.
  void Abort() override {}

 private:
  const std::shared_ptr<testing::MapRendezvous> map_;
};

}  // namespace takt::session
