// SPDX-License-Identifier: Apache-2.0
#include "cli/data/commands.h"

namespace takt::cli {

void AddData(CLI::App& app, Context& context) {
  CLI::App* data = app.add_subcommand("data", "Make token files, and look into them");
  data->footer(
      "These commands need no coordinator.\n\nExamples:\n"
      "  takt data tokenize book.txt --tokenizer gpt2 --out train.bin\n"
      "  takt data info train.bin --format uint16 --context 1024");
  AddDataTokenize(*data, context);
  AddDataPack(*data, context);
  AddDataInfo(*data, context);
}

}  // namespace takt::cli
