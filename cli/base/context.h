// SPDX-License-Identifier: Apache-2.0
// A command gets a Context: where to print, the global options, and the environment of the process.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>

#include "CLI/App.hpp"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/base/exit_code.h"
#include "common/certificates/tls_files.h"

namespace takt::cli {

enum class OutputFormat { kText, kJson };

// The payload goes to `out`, everything else to `err`.
struct Terminal {
  std::ostream& out;
  std::ostream& err;
  bool out_is_tty = false;
  bool err_is_tty = false;
  bool color = false;  // of `err`; false if NO_COLOR is set or TERM is dumb
  int columns = 80;    // of `err`
};

struct Context {
  Terminal terminal;
  std::function<std::optional<std::string>(const char*)> environment;
  std::string program_directory;  // where takt-coordinator and takt-worker are

  // Global options.
  std::string coordinator;
  certificates::TlsFiles tls;
  bool insecure = false;
  OutputFormat output = OutputFormat::kText;
  double timeout_seconds = 15;

  // The parsed command sets this.
  std::function<absl::StatusOr<ExitCode>()> action;

  bool json() const { return output == OutputFormat::kJson; }
  absl::Duration timeout() const { return absl::Seconds(timeout_seconds); }
};

// Adds a command that does `action`. It is not inline because the code of CLI11 that makes a
// command takes most of a file's build time.
CLI::App* AddAction(CLI::App& parent, Context& context, const std::string& name,
                    const std::string& summary, std::function<absl::StatusOr<ExitCode>()> action);

// Adds a command that runs `run(context, options)` with the options that `declare` declared.
template <class Options, class Declare, class Run>
CLI::App* AddCommand(CLI::App& parent, Context& context, const std::string& name,
                     const std::string& summary, Declare declare, Run run) {
  auto options = std::make_shared<Options>();
  CLI::App* command = AddAction(parent, context, name, summary,
                                [&context, options, run] { return run(context, *options); });
  declare(*command, *options);
  return command;
}

}  // namespace takt::cli
