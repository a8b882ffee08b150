// SPDX-License-Identifier: Apache-2.0
// Names the nearest steps that are kept when the requested ones are missing.
#pragma once

#include <span>
#include <string>

#include "common/base/id.h"

namespace takt::trace {

// Returns the end of an error that began with "step 5 is not kept: ": the step before and the one
// after those that were asked for, why there are gaps, and what to do.
// steps: which there are; ascending, not empty, and none from first to last.
std::string NearestSteps(std::span<const StepId> steps, StepId first, StepId last);

}  // namespace takt::trace
