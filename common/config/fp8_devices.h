// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "common/base/device.h"
#include "common/model/model.h"

namespace takt::config {

// Checks that cuBLASLt multiplies on the GPU as the recipe says. Errors: kInvalidArgument
// (FieldError of `precision`).
absl::Status CheckFp8On(model::Fp8Recipe recipe, const Device& device);

// Returns the last of the recipes by which a worker with this GPU may be chosen. GPUs that multiply
// by a recipe do so by those before it in the enumeration. One whose capability is not known counts
// as one that multiplies by all: its worker refuses the job if it does not.
model::Fp8Recipe MostFp8On(const Device& device);

}  // namespace takt::config
