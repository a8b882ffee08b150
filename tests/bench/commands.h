// SPDX-License-Identifier: Apache-2.0
// The subcommands of takt-bench, one file each.
#pragma once

#include <CLI/CLI.hpp>

#include "absl/status/status.h"

namespace takt::bench {

// Each adds its subcommand; when the user chose it, it runs while the command line is parsed,
// prints its result to stdout and leaves its status. `result` is borrowed until then.
void AddBubbleCommand(CLI::App& app, absl::Status& result);
void AddCheckpointCommand(CLI::App& app, absl::Status& result);
void AddKernelsCommand(CLI::App& app, absl::Status& result);
void AddMemoryCommand(CLI::App& app, absl::Status& result);
void AddPlannerCommand(CLI::App& app, absl::Status& result);
void AddReportsCommand(CLI::App& app, absl::Status& result);
void AddRuntimeCommand(CLI::App& app, absl::Status& result);
void AddTracingCommand(CLI::App& app, absl::Status& result);
void AddTransportCommand(CLI::App& app, absl::Status& result);
void AddTrainCommand(CLI::App& app, absl::Status& result);
void AddSearchCommand(CLI::App& app, absl::Status& result);
void AddWeightGradsCommand(CLI::App& app, absl::Status& result);

}  // namespace takt::bench
