// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "common/base/device.h"
#include "common/model/model.h"

namespace takt::config {

// Checks that cuBLASLt multiplies on the GPU as the recipe says. Errors: kInvalidArgument
// (FieldError of `precision`).
absl::Status CheckFp8On(model::Fp8Recipe recipe, const Device& device);

}  // namespace takt::config
