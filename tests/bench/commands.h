// SPDX-License-Identifier: Apache-2.0
// Adds the subcommands of takt-bench. Each has a file of its name.
#pragma once

#include <CLI/CLI.hpp>

#include "absl/status/status.h"

namespace takt::bench {

// Each function adds one subcommand. If the user chose it, it runs while the command line is
// parsed, prints its result to stdout and stores its status in `result`, which is borrowed until
// then.
void AddBubbleCommand(CLI::App& app, absl::Status& result);
void AddCheckpointCommand(CLI::App& app, absl::Status& result);
void AddCopiesCommand(CLI::App& app, absl::Status& result);
void AddCountCommand(CLI::App& app, absl::Status& result);
void AddDelayedCommand(CLI::App& app, absl::Status& result);
void AddExpertsCommand(CLI::App& app, absl::Status& result);
void AddGenerateCommand(CLI::App& app, absl::Status& result);
void AddHistoryCommand(CLI::App& app, absl::Status& result);
void AddImbalanceCommand(CLI::App& app, absl::Status& result);
void AddKernelsCommand(CLI::App& app, absl::Status& result);
void AddLargeCheckpointCommand(CLI::App& app, absl::Status& result);
void AddMemoryCommand(CLI::App& app, absl::Status& result);
void AddMeshMemoryCommand(CLI::App& app, absl::Status& result);
void AddPairsCommand(CLI::App& app, absl::Status& result);
void AddPlanTruthCommand(CLI::App& app, absl::Status& result);
void AddPlannerCommand(CLI::App& app, absl::Status& result);
void AddPublishedCommand(CLI::App& app, absl::Status& result);
void AddQueueCommand(CLI::App& app, absl::Status& result);
void AddRecoveryCommand(CLI::App& app, absl::Status& result);
void AddReportsCommand(CLI::App& app, absl::Status& result);
void AddRuntimeCommand(CLI::App& app, absl::Status& result);
void AddScaleCommand(CLI::App& app, absl::Status& result);
void AddShardCommand(CLI::App& app, absl::Status& result);
void AddSplitCommand(CLI::App& app, absl::Status& result);
void AddTensorCommand(CLI::App& app, absl::Status& result);
void AddTokenizeCommand(CLI::App& app, absl::Status& result);
void AddTracingCommand(CLI::App& app, absl::Status& result);
void AddTransportCommand(CLI::App& app, absl::Status& result);
void AddTransportsCommand(CLI::App& app, absl::Status& result);
void AddTrainCommand(CLI::App& app, absl::Status& result);
void AddSearchCommand(CLI::App& app, absl::Status& result);
void AddWeightGradsCommand(CLI::App& app, absl::Status& result);

}  // namespace takt::bench
