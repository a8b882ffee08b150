// SPDX-License-Identifier: Apache-2.0
// How the subcommands of takt-bench are declared: options, and what runs with them.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "absl/status/status.h"

namespace takt::bench {

// What every subcommand takes.
struct CommonOptions {
  std::string output = "text";  // or "json"
  bool json() const { return output == "json"; }
};

// Adds a subcommand. declare(CLI::App&, Options&) ties its flags to options of its own, which live
// as long as the app; when the user chose it, `run` is called with them while the command line is
// parsed, and leaves its status in `result`. Options: a CommonOptions.
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
