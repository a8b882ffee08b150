// SPDX-License-Identifier: Apache-2.0
// Lets takt-coordinator, which alone knows the state file, work on it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/base/context.h"

namespace takt::cli {

// Runs `takt-coordinator --maintain-state ARGUMENTS` and waits for it. It prints the
// program's output, and returns the program's error as a status.
// Errors: kNotFound (the program or a file is missing), kInvalidArgument, kFailedPrecondition.
absl::StatusOr<ExitCode> MaintainState(const Context& context,
                                       const std::vector<std::string>& arguments);

}  // namespace takt::cli
