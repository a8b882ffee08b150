// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "common/explain/advice.h"
#include "common/explain/explain.h"

namespace takt::explain {

// The text for people: the parts of the job's step and of each rank's, what is worst, what would
// help.
std::string ToString(const Explanation& explanation, const std::vector<Advice>& advice);

}  // namespace takt::explain
