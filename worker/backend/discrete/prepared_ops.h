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
  // kFailedPrecondition: this op needs preparation, and no op like it was added.
  absl::Status Check(const Op& op) const;

 private:
  std::set<std::string> likes_;
};

}  // namespace takt::backend
