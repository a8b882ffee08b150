// SPDX-License-Identifier: Apache-2.0
// Decides how many microbatches the grouped families (interleaved ones, gis) take at a time.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "common/schedule/generate.h"

namespace takt::schedule {

// Returns the requested group, or without a request the smallest legal one from P on, at most M. A
// group is legal if it and the last group have at least `least` microbatches. In shorter groups
// ranks wait for each other, in the worst case for ever. Errors: kInvalidArgument (FieldError
// "group", or "microbatches" if there are fewer than `least`).
absl::StatusOr<int> ChooseGroup(std::string_view family, const GenerateOptions& options, int least);

}  // namespace takt::schedule
