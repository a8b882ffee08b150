// SPDX-License-Identifier: Apache-2.0
// The ops that a device is prepared for (Backend::Prepare). It refuses all others.
#pragma once

#include <set>
#include <string>

#include "absl/status/status.h"
#include "worker/backend/ops.h"

namespace takt::backend {

// Thread: its backend's.
class PreparedOps {
 public:
  void Add(const Op& op);
  // Call it before the op is run.
  // kFailedPrecondition: this op needs preparation, and no op like it was added.
  absl::Status Check(const Op& op);
  // Returns whether an op was run that needs preparation.
  bool any_used() const { return any_used_; }

 private:
  std::set<std::string> likes_;
  bool any_used_ = false;
};

}  // namespace takt::backend
