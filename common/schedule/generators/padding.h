// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace takt::schedule {

// Some families need time and memory for `width` slots of each rank, however few microbatches there
// are. Checks that all slots together are within the limit of actions. kInvalidArgument (FieldError
// "ranks"): they are not.
absl::Status CheckPadded(int num_ranks, std::int64_t width);

}  // namespace takt::schedule
