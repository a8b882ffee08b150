// SPDX-License-Identifier: Apache-2.0
// `takt watch` on a terminal: a screen that is redrawn while the job runs.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "cli/base/context.h"
#include "cli/base/exit_code.h"
#include "cli/client/client.h"

namespace takt::cli {

// True if stdout is a terminal that can move its cursor, and the output is text.
bool CanWatchLive(const Context& context);

// Like WatchUntilEnd, on a screen of its own. When the job has ended or after Ctrl-C it restores
// the former screen and prints the last state of the job there.
absl::StatusOr<ExitCode> WatchLive(const Context& context, Client& client, const std::string& name,
                                   std::int64_t after_step);

}  // namespace takt::cli
