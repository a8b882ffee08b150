// SPDX-License-Identifier: Apache-2.0
// The part of an assignment that all ranks of a generation share, as text: the assignment without
// rank, programs, threads and secret. A coordinator that does not know a job learns it from there.
// assignment_serde.cc has the functions.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/control/assignment.h"

namespace takt::control {

// Returns the same text for all ranks of one generation.
std::string SharedText(const Assignment& assignment);

// Errors: kInvalidArgument, for a text that is not such a part, or whose ranks are not those of its
// mesh. There are none if the ranks meet sparsely.
absl::StatusOr<Assignment> ParseShared(const std::string& text);

}  // namespace takt::control
