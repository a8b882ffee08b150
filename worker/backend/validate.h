// SPDX-License-Identifier: Apache-2.0
// The rules of ops.h that hold whatever the backend.
#pragma once

#include "absl/status/status.h"
#include "worker/backend/ops.h"

namespace takt::backend {

// kInvalidArgument naming the op and the field whose rule is broken. Looks at sizes and pointers,
// not at data.
absl::Status ValidateOp(const Op& op);

}  // namespace takt::backend
