// SPDX-License-Identifier: Apache-2.0
// The command line as a whole.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/base/context.h"

namespace takt::cli {

// The tree of commands and options; each command sets context.action. Borrows `context`.
std::unique_ptr<CLI::App> MakeApp(Context& context);

// Parses, runs, prints errors. arguments: without the program's name.
ExitCode RunApp(const std::vector<std::string>& arguments, Context& context);

}  // namespace takt::cli
