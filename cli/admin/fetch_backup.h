// SPDX-License-Identifier: Apache-2.0
// Fetches a backup from a coordinator that runs, on this machine or another one.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "cli/base/context.h"

namespace takt::cli {

// Writes what the coordinator streams to a new file of mode 0600. Nothing is left of the file if
// the stream does not end well or is interrupted.
// Errors: those of CheckNewFile, ConnectToCoordinator and ClusterService.BackUpState; kDataLoss
// (the bytes do not have the hash that the coordinator sent).
absl::StatusOr<ExitCode> FetchBackup(const Context& context, const std::string& file);

}  // namespace takt::cli
