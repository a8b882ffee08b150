// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "cli/base/report.h"
#include "cli/schedule/commands.h"
#include "cli/schedule/page.h"
#include "cli/schedule/schedule_source.h"
#include "cli/schedule/simulated_schedule.h"
#include "cli/schedule/step_costs.h"
#include "common/base/status.h"
#include "common/schedule/text.h"

namespace takt::cli {
namespace {

struct ShowOptions {
  ScheduleSource source;
  CostOptions costs;
  std::string format = "grid";
};

absl::StatusOr<std::string> Render(const Context& context, const ShowOptions& options,
                                   const StepCosts& costs) {
  ASSIGN_OR_RETURN(LoadedSchedule loaded, LoadSchedule(options.source, costs));
  if (!loaded.remark.empty()) Say(context, loaded.remark);
  const StepOptions step = {.max_in_flight = options.source.sizes.max_in_flight()};
  ASSIGN_OR_RETURN(const schedule::Schedule schedule,
                   WithVocabulary(std::move(loaded.schedule), costs, step));
  if (options.format == "csv") return schedule::FormatCsv(schedule);
  ASSIGN_OR_RETURN(const SimulatedSchedule simulated, SimulateSchedule(schedule, costs, step));
  if (!context.json())
    context.terminal.err << PredictionText(costs, schedule.num_ranks()) << std::flush;
  if (options.format == "html" && schedule.spreads_vocabulary) {
    return InvalidField({.field = "--format",
                         .value = "html",
                         .rule = "shows schedules without S and T only",
                         .fix = "use svg, grid or csv"});
  }
  if (options.format == "html") return RenderPage(schedule, simulated);
  return options.format == "svg" ? schedule::RenderSvg(simulated.timeline)
                                 : schedule::RenderGrid(simulated.timeline);
}

absl::StatusOr<ExitCode> Show(const Context& context, const ShowOptions& options) {
  ASSIGN_OR_RETURN(const StepCosts costs, ReadCosts(options.costs));
  ASSIGN_OR_RETURN(const std::string text, Render(context, options, costs));
  if (context.json()) {
    Json json = {{"schedule", options.source.name}, {"format", options.format}, {"text", text}};
    if (!costs.measured.empty()) json["prediction_from"] = costs.measured;
    PrintJson(context, json);
  } else {
    context.terminal.out << text << std::flush;
  }
  return ExitCode::kDone;
}

}  // namespace

void AddScheduleShow(CLI::App& schedule, Context& context) {
  CLI::App* command = AddCommand<ShowOptions>(
      schedule, context, "show",
      "Print a schedule as CSV, as a grid in time, as a picture, or as a page",
      [](CLI::App& app, ShowOptions& options) {
        DeclareScheduleSource(app, options.source);
        app.add_option("-f,--format", options.format, "What to print")
            ->check(CLI::IsMember({"csv", "grid", "svg", "html"}))
            ->capture_default_str();
        DeclareCosts(app, options.costs);
      },
      Show);
  command->footer(
      "Examples:\n"
      "  takt schedule show 1f1b --ranks 4 --microbatches 8\n"
      "  takt schedule show gpipe --ranks 4 --microbatches 8 -f csv > gpipe.csv\n"
      "  takt schedule show interleaved-1f1b --ranks 4 --microbatches 8 --chunks 2 -f svg > "
      "picture.svg\n"
      "  takt schedule show 1f1b --ranks 4 --microbatches 8 --cost F=1,I=1,W=1,S=0.5,T=1\n"
      "  takt schedule show auto --ranks 4 --microbatches 8 --memory 4 --cost "
      "F=1,I=1.1,W=0.7,comm=0.1 -f html > page.html");
}

}  // namespace takt::cli
