// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "CLI/App.hpp"

namespace takt::cli {

// Completion of `app` for bash, zsh or fish, made from its commands, options and their choices.
// Elsewhere files complete.
std::string CompletionScript(const CLI::App& app, const std::string& shell);

}  // namespace takt::cli
