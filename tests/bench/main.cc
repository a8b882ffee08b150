// SPDX-License-Identifier: Apache-2.0
// takt-bench shows how close each part comes to its limit. It measures the limit in the same run.
#include <cstdio>
#include <string>

#include "common/base/lock_checks.h"
#include "tests/bench/commands.h"

int main(int argc, char** argv) {
  takt::SkipLockChecks();
  CLI::App app(
      "Measures parts of Takt against their limits. Every command prints a table, or one JSON "
      "object with -o json.",
      "takt-bench");
  app.require_subcommand(1);
  absl::Status result;
  takt::bench::AddBubbleCommand(app, result);
  takt::bench::AddCheckpointCommand(app, result);
  takt::bench::AddCopiesCommand(app, result);
  takt::bench::AddCountCommand(app, result);
  takt::bench::AddDelayedCommand(app, result);
  takt::bench::AddExpertsCommand(app, result);
  takt::bench::AddGenerateCommand(app, result);
  takt::bench::AddHistoryCommand(app, result);
  takt::bench::AddImbalanceCommand(app, result);
  takt::bench::AddKernelsCommand(app, result);
  takt::bench::AddLargeCheckpointCommand(app, result);
  takt::bench::AddMemoryCommand(app, result);
  takt::bench::AddMeshMemoryCommand(app, result);
  takt::bench::AddPairsCommand(app, result);
  takt::bench::AddPlanTruthCommand(app, result);
  takt::bench::AddPlannerCommand(app, result);
  takt::bench::AddPublishedCommand(app, result);
  takt::bench::AddQueueCommand(app, result);
  takt::bench::AddRecoveryCommand(app, result);
  takt::bench::AddReportsCommand(app, result);
  takt::bench::AddRuntimeCommand(app, result);
  takt::bench::AddSplitCommand(app, result);
  takt::bench::AddScaleCommand(app, result);
  takt::bench::AddTensorCommand(app, result);
  takt::bench::AddTokenizeCommand(app, result);
  takt::bench::AddTracingCommand(app, result);
  takt::bench::AddTransportCommand(app, result);
  takt::bench::AddTransportsCommand(app, result);
  takt::bench::AddTrainCommand(app, result);
  takt::bench::AddSearchCommand(app, result);
  takt::bench::AddShardCommand(app, result);
  takt::bench::AddWeightGradsCommand(app, result);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (result.ok()) return 0;
  std::fprintf(stderr, "takt-bench: %s\n", std::string(result.message()).c_str());
  return result.code() == absl::StatusCode::kInvalidArgument ? 2 : 1;
}
