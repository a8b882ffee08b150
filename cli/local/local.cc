// SPDX-License-Identifier: Apache-2.0
#include "cli/local/commands.h"

namespace takt::cli {

void AddLocal(CLI::App& app, Context& context) {
  CLI::App* local = app.add_subcommand("local", "Train on this machine");
  local->footer(
      "Examples:\n"
      "  takt local run job.yaml                   one job, start to end\n"
      "  takt local up --workers 4                 a cluster in the background\n"
      "  takt submit job.yaml && takt local down");
  AddLocalRun(*local, context);
  AddLocalUp(*local, context);
  AddLocalDown(*local, context);
}

}  // namespace takt::cli
