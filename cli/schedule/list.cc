// SPDX-License-Identifier: Apache-2.0
#include "cli/base/report.h"
#include "cli/base/text.h"
#include "cli/schedule/commands.h"
#include "common/schedule/generate.h"

namespace takt::cli {
namespace {

absl::StatusOr<ExitCode> List(const Context& context) {
  Json families = Json::array();
  Table table({"NAME", "SUMMARY", "BACKWARD", "CHUNKS", "REFERENCE"});
  for (const schedule::Family& family : schedule::Families()) {
    families.push_back({{"name", family.name},
                        {"summary", family.summary},
                        {"reference", family.reference},
                        {"splits_backward", family.splits_backward},
                        {"uses_chunks", family.uses_chunks}});
    table.Add({std::string(family.name), std::string(family.summary),
               family.splits_backward ? "I, W" : "B", family.uses_chunks ? "yes" : "no",
               std::string(family.reference)});
  }
  if (context.json()) {
    PrintJson(context, {{"families", families}});
  } else {
    context.terminal.out << table.ToString() << std::flush;
  }
  return ExitCode::kDone;
}

}  // namespace

void AddScheduleList(CLI::App& schedule, Context& context) {
  AddAction(schedule, context, "list", "List the built-in families", [&context] {
    return List(context);
  })->footer("Example:\n  takt schedule list");
}

}  // namespace takt::cli
