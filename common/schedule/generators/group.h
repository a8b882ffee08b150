// SPDX-License-Identifier: Apache-2.0
// How many microbatches the grouped families (interleaved ones, gis) take at a time.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "common/schedule/generate.h"

namespace takt::schedule {

// The group asked for, else the smallest legal one from P on, at most M. Legal: of at least `least`
// microbatches, the last group too. Shorter ones leave ranks waiting for each other, in the worst
// case for ever.
// Errors: kInvalidArgument (FieldError "group", or "microbatches" if there are fewer than `least`).
absl::StatusOr<int> ChooseGroup(std::string_view family, const GenerateOptions& options, int least);

}  // namespace takt::schedule
