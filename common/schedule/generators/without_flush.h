// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/statusor.h"
#include "common/schedule/generate.h"

namespace takt::schedule {

// Returns 1F1B, to be run without emptying the pipeline between steps. kInvalidArgument (FieldError
// "microbatches"): there are fewer than ranks, so that a step would begin before the one before the
// last has ended.
absl::StatusOr<Schedule> WithoutFlush(const Family& family, const GenerateOptions& options);

}  // namespace takt::schedule
