// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace takt::schedule {

// Some families take time and memory of `width` slots a rank however few the microbatches are: that
// is bounded like the actions are. kInvalidArgument (FieldError "ranks").
absl::Status CheckPadded(int num_ranks, std::int64_t width);

}  // namespace takt::schedule
