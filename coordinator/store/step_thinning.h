// SPDX-License-Identifier: Apache-2.0
// The step log of a long job keeps every step of a window. Of the steps before it, it keeps every
// tenth, of those before ten windows every hundredth, and so on: ten million steps take less than
// 300,000 rows. Rows that stay are as they were.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/id.h"

namespace takt::store {

// Returns the steps that are removed when `step` is added: about one on average. window: 0: all
// steps stay.
std::vector<StepId> StepsToThin(StepId step, std::int64_t window);

}  // namespace takt::store
