// SPDX-License-Identifier: Apache-2.0
// The flags of a daemon's log.
#pragma once

#include <CLI/CLI.hpp>

#include "common/base/log.h"

namespace takt::daemon {

// Adds --log-level and --log-format to `app`. Parsing sets `level` and `format`, which must outlive
// `app`; without these flags they keep their values.
void AddLogFlags(CLI::App& app, LogLevel& level, LogFormat& format);

}  // namespace takt::daemon
