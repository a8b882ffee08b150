// SPDX-License-Identifier: Apache-2.0
// `takt watch` on a terminal: a screen that is drawn anew while the job goes on.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "cli/base/context.h"
#include "cli/base/exit_code.h"
#include "cli/client/client.h"

namespace takt::cli {

// stdout is a terminal that can move its cursor, and text is wanted.
bool CanWatchLive(const Context& context);

// As WatchUntilEnd; when the job has ended, or Ctrl-C came, its last word is left on the screen
// that was there before.
absl::StatusOr<ExitCode> WatchLive(const Context& context, Client& client, const std::string& name,
                                   std::int64_t after_step);

}  // namespace takt::cli
