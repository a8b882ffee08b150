// SPDX-License-Identifier: Apache-2.0
// Checks the rules of ops.h that hold for every backend.
#pragma once

#include "absl/status/status.h"
#include "worker/backend/ops.h"

namespace takt::backend {

// Returns kInvalidArgument, naming the op and the field, if a rule is broken. It looks at sizes and
// pointers, not at data.
absl::Status ValidateOp(const Op& op);

}  // namespace takt::backend
