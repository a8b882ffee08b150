// SPDX-License-Identifier: Apache-2.0
#include "cli/data/commands.h"

namespace takt::cli {

void AddData(CLI::App& app, Context& context) {
  CLI::App* data = app.add_subcommand("data", "Look into token files");
  data->footer(
      "These commands need no coordinator.\n\nExample:\n  takt data info train.bin --format uint16 "
      "--context "
      "1024");
  AddDataInfo(*data, context);
}

}  // namespace takt::cli
