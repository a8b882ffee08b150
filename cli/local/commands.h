// SPDX-License-Identifier: Apache-2.0
// `takt local`: the command and its subcommands, each in a file of its name.
#pragma once

#include "cli/base/context.h"

namespace takt::cli {

void AddLocal(CLI::App& app, Context& context);  // local run, local up, local down

// Used by the above.
struct ProcessOptions {
  int threads = 0;
  std::string device = "auto";
};
void AddProcessOptions(CLI::App& command, ProcessOptions& options);
void AddLocalRun(CLI::App& local, Context& context);
void AddLocalUp(CLI::App& local, Context& context);
void AddLocalDown(CLI::App& local, Context& context);

}  // namespace takt::cli
