// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "CLI/App.hpp"

namespace takt::cli {

// Makes the completion of `app` for bash, zsh or fish from its commands, its options and their
// choices. Values that the help calls JOB, WORKER or STEP complete to names that the shell gets
// from `takt complete`. If there are none, file names complete.
std::string CompletionScript(const CLI::App& app, const std::string& shell);

}  // namespace takt::cli
