// SPDX-License-Identifier: Apache-2.0
// Checks of sizes for the families with two directions. Errors: kInvalidArgument (FieldError).
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "common/schedule/generate.h"

namespace takt::schedule {

// Checks that `value` is even. field: "ranks" or "microbatches".
absl::Status CheckEven(std::string_view family, std::string_view field, int value);

// Checks that M >= 2P.
absl::Status CheckTwiceRanks(std::string_view family, const GenerateOptions& options);

}  // namespace takt::schedule
