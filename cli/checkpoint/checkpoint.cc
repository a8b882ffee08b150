// SPDX-License-Identifier: Apache-2.0
#include "cli/checkpoint/commands.h"

namespace takt::cli {

void AddCheckpoint(CLI::App& app, Context& context) {
  CLI::App* checkpoint =
      app.add_subcommand("checkpoint", "Look into checkpoints, verify and export them");
  checkpoint->footer(
      "These commands work on the directory itself and need no coordinator.\n\nExamples:\n"
      "  takt checkpoint list checkpoints\n"
      "  takt checkpoint export checkpoints my-model");
  AddCheckpointList(*checkpoint, context);
  AddCheckpointVerify(*checkpoint, context);
  AddCheckpointExport(*checkpoint, context);
}

}  // namespace takt::cli
