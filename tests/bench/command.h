// SPDX-License-Identifier: Apache-2.0
// Declares the subcommands of takt-bench: their options, and the function that runs with them.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "absl/status/status.h"

namespace takt::bench {

// Every subcommand takes these options.
struct CommonOptions {
  std::string output = "text";  // "text" or "json"
  bool json() const { return output == "json"; }
};

// Adds a subcommand. declare(CLI::App&, Options&) binds its flags to options that live as long as
// the app. If the user chose the subcommand, `run` gets these options while the command line is
// parsed, and its status goes to `result`. Options derives from CommonOptions.
template <class Options, class Declare, class Run>
void AddCommand(CLI::App& app, absl::Status& result, const std::string& name,
                const std::string& description, Declare declare, Run run) {
  const auto options = std::make_shared<Options>();
  CLI::App& command = *app.add_subcommand(name, description);
  command.option_defaults()->always_capture_default();
  declare(command, *options);
  command.add_option("-o,--output", options->output, "text or json")
      ->check(CLI::IsMember({"text", "json"}));
  command.callback([options, run, &result] { result = run(*options); });
}

}  // namespace takt::bench
