// SPDX-License-Identifier: Apache-2.0
// Declares the functions that add the subcommands of takt-bench.
#pragma once

#include <CLI/CLI.hpp>

#include "absl/status/status.h"

namespace takt::bench {

// NAME_command::Add adds one subcommand. If the user chose it, it runs while the command line is
// parsed, prints its result to stdout and stores its status in `result`, which is borrowed until
// then.
#define TAKT_COMMAND(name)                         \
  namespace name##_command {                       \
    void Add(CLI::App& app, absl::Status& result); \
  }
#include "tests/bench/command_list.inc"

}  // namespace takt::bench
