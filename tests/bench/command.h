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

// Adds the option for CommonOptions::output to a command, or to the app.
inline CLI::Option* AddOutput(CLI::App& app, std::string& output) {
  return app.add_option("-o,--output", output, "text or json")
      ->check(CLI::IsMember({"text", "json"}));
}

// Adds a subcommand. If the app has the option of AddOutput too, that one may come before the
// subcommand. declare(CLI::App&, Options&) binds its flags to options that live as long as
// the app. If the user chose the subcommand, `run` gets these options while the command line is
// parsed, and its status goes to `result`. Options derives from CommonOptions.
template <class Options, class Declare, class Run>
void AddCommand(CLI::App& app, absl::Status& result, const std::string& name,
                const std::string& description, Declare declare, Run run) {
  const auto options = std::make_shared<Options>();
  CLI::App& command = *app.add_subcommand(name, description);
  command.option_defaults()->always_capture_default();
  declare(command, *options);
  const CLI::Option* const output = AddOutput(command, options->output);
  command.callback([options, run, output, &app, &result] {
    const CLI::Option* const before = app.get_option_no_throw("--output");
    if (output->empty() && before != nullptr && !before->empty())
      options->output = before->as<std::string>();
    result = run(*options);
  });
}

}  // namespace takt::bench
