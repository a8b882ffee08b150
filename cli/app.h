// SPDX-License-Identifier: Apache-2.0
// Holds the whole command line: the tree of commands, wrong usage, exit codes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/base/context.h"

namespace takt::cli {

// Builds the tree of commands and options. Each command sets context.action. Borrows `context`.
std::unique_ptr<CLI::App> MakeApp(Context& context);

// Adds the options that every command takes. They are stored in `context`.
void AddGlobalOptions(CLI::App& app, Context& context);

// Parses the arguments, runs the command and prints errors. arguments: without the program's name.
ExitCode RunApp(const std::vector<std::string>& arguments, Context& context);

}  // namespace takt::cli
