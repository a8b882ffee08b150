// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/commands.h"
#include "cli/report.h"
#include "cli/schedule_costs.h"
#include "cli/schedule_source.h"
#include "cli/simulated_schedule.h"
#include "cli/text.h"
#include "common/base/status.h"

namespace takt::cli {
namespace {

struct SimulateOptions {
  ScheduleSource source;
  CostOptions costs;
};

Json ReportJson(const schedule::Schedule& schedule, const sim::Report& report) {
  Json ranks = Json::array();
  for (const sim::RankReport& rank : report.ranks) {
    ranks.push_back({{"busy", rank.busy},
                     {"peak_in_flight", rank.peak_in_flight},
                     {"peak_stash_bytes", rank.peak_stash_bytes},
                     {"warmup_idle", rank.warmup_idle},
                     {"steady_idle", rank.steady_idle},
                     {"cooldown_idle", rank.cooldown_idle}});
  }
  return {{"schedule", schedule.name},
          {"stages", schedule.num_stages},
          {"microbatches", schedule.num_microbatches},
          {"makespan", report.makespan},
          {"bubble_fraction", report.bubble_fraction},
          {"span_bubble_fraction", report.span_bubble_fraction},
          {"messages", report.num_messages},
          {"ranks", std::move(ranks)}};
}

std::string ReportText(const sim::Report& report) {
  Table table({"RANK", "BUSY", "WARMUP IDLE", "STEADY IDLE", "COOLDOWN IDLE", "PEAK IN FLIGHT"});
  for (std::size_t i = 0; i < report.ranks.size(); ++i) {
    const sim::RankReport& rank = report.ranks[i];
    table.Add({absl::StrCat(i), absl::StrCat(rank.busy), absl::StrCat(rank.warmup_idle),
               absl::StrCat(rank.steady_idle), absl::StrCat(rank.cooldown_idle),
               absl::StrCat(rank.peak_in_flight)});
  }
  return absl::StrFormat("makespan %g\nbubble %s of the makespan, %s of the longest rank\n%s",
                         report.makespan, FormatPercent(report.bubble_fraction),
                         FormatPercent(report.span_bubble_fraction), table.ToString());
}

absl::StatusOr<ExitCode> Simulate(const Context& context, const SimulateOptions& options) {
  ASSIGN_OR_RETURN(const StepCosts costs, ReadCosts(options.costs));
  ASSIGN_OR_RETURN(const schedule::Schedule schedule, LoadSchedule(options.source, costs.time));
  ASSIGN_OR_RETURN(const SimulatedSchedule simulated,
                   SimulateSchedule(schedule, costs, options.source.sizes.max_in_flight()));
  if (context.json()) {
    PrintJson(context, ReportJson(schedule, simulated.report));
  } else {
    context.terminal.out << ReportText(simulated.report) << std::flush;
  }
  return ExitCode::kDone;
}

}  // namespace

void AddScheduleSimulate(CLI::App& schedule, Context& context) {
  CLI::App* command = AddCommand<SimulateOptions>(
      schedule, context, "simulate", "Say how long a step takes and where ranks idle",
      [](CLI::App& app, SimulateOptions& options) {
        DeclareScheduleSource(app, options.source);
        DeclareCosts(app, options.costs);
      },
      Simulate);
  command->footer(
      absl::StrCat("bubble_fraction is 1 - busy / (P * makespan); the span metric counts each rank "
                   "from its own first\nstart to its own last end. A microbatch is in flight from "
                   "the start of its F to the end of its W (or B).\n\n",
                   kCostsFileHelp,
                   "\n\nExamples:\n"
                   "  takt schedule simulate 1f1b --ranks 4 --microbatches 8\n"
                   "  takt -o json schedule simulate mine.csv --cost F=1,I=1.1,W=0.7,comm=0.1"));
}

}  // namespace takt::cli
