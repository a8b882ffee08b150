// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "common/explain/advice.h"
#include "common/explain/explain.h"

namespace takt::explain {

// Returns the text for people: the parts of the job's step and of each rank's, the worst
// instruction and link, and the advice.
std::string ToString(const Explanation& explanation, const std::vector<Advice>& advice);

}  // namespace takt::explain
