// SPDX-License-Identifier: Apache-2.0
// takt-bench shows how close each part comes to its limit. It measures the limit in the same run.
#include <cstdio>
#include <string>

#include "common/base/lock_checks.h"
#include "tests/bench/command.h"
#include "tests/bench/commands.h"

int main(int argc, char** argv) {
  takt::SkipLockChecks();
  CLI::App app(
      "Measures parts of Takt against their limits. Every command prints a table, or one JSON "
      "object with -o json.",
      "takt-bench");
  app.require_subcommand(1);
  takt::bench::CommonOptions common;
  takt::bench::AddOutput(app, common.output);
  absl::Status result;
#define TAKT_COMMAND(name) takt::bench::name##_command::Add(app, result);
#include "tests/bench/command_list.inc"
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (result.ok()) return 0;
  std::fprintf(stderr, "takt-bench: %s\n", std::string(result.message()).c_str());
  return result.code() == absl::StatusCode::kInvalidArgument ? 2 : 1;
}
