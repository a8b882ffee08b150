// SPDX-License-Identifier: Apache-2.0
// Reads a daemon's settings from three places. The command line wins over the environment, and the
// environment over the settings file.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace takt::daemon {

// Gives every long option of `app` that exists by now a key of the settings file and an environment
// variable: `--metrics-listen` is `metrics_listen: ...` in the file and PREFIX_METRICS_LISTEN. It
// adds `--settings FILE`. Without that option it reads `default_file` if that exists.
//
// The file is a YAML map of scalars. An unknown or repeated key, a value that its option refuses, a
// nested value and text that is not YAML are errors of `app.parse` (CLI::ParseError) with file,
// line and column.
void AddSettings(CLI::App& app, const std::string& default_file, const std::string& prefix);

}  // namespace takt::daemon
