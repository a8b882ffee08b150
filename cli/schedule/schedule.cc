// SPDX-License-Identifier: Apache-2.0
#include "cli/schedule/commands.h"

namespace takt::cli {

void AddSchedule(CLI::App& app, Context& context) {
  CLI::App* schedule =
      app.add_subcommand("schedule", "Print, check and simulate pipeline schedules");
  schedule->footer(
      "These commands need no coordinator. A schedule is a family by name, or a CSV as PyTorch's "
      "pipelining\nreads and writes it: a row for each rank, cells like 2F0 (stage, kind, "
      "microbatch).\n\n"
      "Examples:\n"
      "  takt schedule show 1f1b --ranks 4 --microbatches 8\n"
      "  takt -o json schedule simulate 1f1b --ranks 4 --microbatches 8 | jq .bubble_fraction\n"
      "  takt schedule compare --ranks 4 --microbatches 8\n"
      "  takt schedule verify mine.csv");
  AddScheduleList(*schedule, context);
  AddScheduleShow(*schedule, context);
  AddScheduleSimulate(*schedule, context);
  AddScheduleCompare(*schedule, context);
  AddScheduleVerify(*schedule, context);
}

}  // namespace takt::cli
