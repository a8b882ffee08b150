// SPDX-License-Identifier: Apache-2.0
// Sizes that the families with two directions serve. kInvalidArgument (FieldError).
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "common/schedule/generate.h"

namespace takt::schedule {

// field: "ranks" or "microbatches".
absl::Status CheckEven(std::string_view family, std::string_view field, int value);

// M >= 2P.
absl::Status CheckTwiceRanks(std::string_view family, const GenerateOptions& options);

}  // namespace takt::schedule
