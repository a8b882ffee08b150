// SPDX-License-Identifier: Apache-2.0
#include "cli/base/context.h"

#include <utility>

// A source that includes only CLI/App.hpp needs an object file that includes these two headers. All
// rooms link this one.
#include "CLI/Config.hpp"
#include "CLI/Formatter.hpp"

namespace takt::cli {

CLI::App* AddAction(CLI::App& parent, Context& context, const std::string& name,
                    const std::string& summary, std::function<absl::StatusOr<ExitCode>()> action) {
  CLI::App* command = parent.add_subcommand(name, summary);
  command->callback([&context, action = std::move(action)] { context.action = action; });
  return command;
}

}  // namespace takt::cli
