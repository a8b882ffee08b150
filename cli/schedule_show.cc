// SPDX-License-Identifier: Apache-2.0
#include "cli/commands.h"
#include "cli/report.h"
#include "cli/schedule_costs.h"
#include "cli/schedule_source.h"
#include "cli/simulated_schedule.h"
#include "common/base/status.h"
#include "common/schedule/text.h"

namespace takt::cli {
namespace {

struct ShowOptions {
  ScheduleSource source;
  CostOptions costs;
  std::string format = "grid";
};

absl::StatusOr<std::string> Render(const ShowOptions& options) {
  ASSIGN_OR_RETURN(const StepCosts costs, ReadCosts(options.costs));
  ASSIGN_OR_RETURN(const schedule::Schedule schedule, LoadSchedule(options.source, costs.time));
  if (options.format == "csv") return schedule::FormatCsv(schedule);
  ASSIGN_OR_RETURN(const SimulatedSchedule simulated,
                   SimulateSchedule(schedule, costs, options.source.sizes.max_in_flight()));
  return options.format == "svg" ? schedule::RenderSvg(simulated.timeline)
                                 : schedule::RenderGrid(simulated.timeline);
}

absl::StatusOr<ExitCode> Show(const Context& context, const ShowOptions& options) {
  ASSIGN_OR_RETURN(const std::string text, Render(options));
  if (context.json()) {
    PrintJson(context,
              {{"schedule", options.source.name}, {"format", options.format}, {"text", text}});
  } else {
    context.terminal.out << text << std::flush;
  }
  return ExitCode::kDone;
}

}  // namespace

void AddScheduleShow(CLI::App& schedule, Context& context) {
  CLI::App* command = AddCommand<ShowOptions>(
      schedule, context, "show", "Print a schedule as CSV, as a grid in time, or as a picture",
      [](CLI::App& app, ShowOptions& options) {
        DeclareScheduleSource(app, options.source);
        app.add_option("-f,--format", options.format, "What to print")
            ->check(CLI::IsMember({"csv", "grid", "svg"}))
            ->capture_default_str();
        DeclareCosts(app, options.costs);
      },
      Show);
  command->footer(
      "Examples:\n"
      "  takt schedule show 1f1b --ranks 4 --microbatches 8\n"
      "  takt schedule show gpipe --ranks 4 --microbatches 8 -f csv > gpipe.csv\n"
      "  takt schedule show interleaved-1f1b --ranks 4 --microbatches 8 --chunks 2 -f svg > "
      "picture.svg");
}

}  // namespace takt::cli
