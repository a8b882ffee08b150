// SPDX-License-Identifier: Apache-2.0
// Settings of a daemon from three places: the command line wins over the environment, the
// environment over the settings file.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace takt::daemon {

// Gives every long option of `app` that exists by now a key of the settings file and an environment
// variable: `--metrics-listen` is `metrics_listen: ...` in the file and PREFIX_METRICS_LISTEN. Adds
// `--settings FILE`; without it `default_file` is read if it is there.
//
// The file is a YAML map of scalars. An unknown or repeated key, a nested value and text that is
// not YAML are errors of `app.parse` (CLI::ParseError) with file, line and column.
void AddSettings(CLI::App& app, const std::string& default_file, const std::string& prefix);

}  // namespace takt::daemon
