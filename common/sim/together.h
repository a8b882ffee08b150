// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "common/program/program.h"

namespace takt::sim {

// Checks that these are the programs of all ranks of one pipeline, in order, each well-formed.
absl::Status CheckTogether(const std::vector<program::Program>& programs);

}  // namespace takt::sim
