// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/base/report.h"
#include "cli/base/text.h"
#include "cli/schedule/commands.h"
#include "cli/schedule/schedule_source.h"
#include "cli/schedule/simulated_schedule.h"
#include "cli/schedule/step_costs.h"
#include "common/base/counted.h"
#include "common/base/status.h"

namespace takt::cli {
namespace {

struct SimulateOptions {
  ScheduleSource source;
  CostOptions costs;
  bool no_barrier = false;
};

Json BoundJson(const schedule::Bound& bound) {
  return {{"work", bound.work},           {"fill", bound.fill},
          {"imbalance", bound.imbalance}, {"communication", bound.communication},
          {"memory", bound.memory},       {"binds", schedule::BindingName(bound.binds)}};
}

Json CriticalPathJson(const sim::Report& report) {
  Json path = Json::array();
  for (const sim::CriticalLink& link : report.critical_path) {
    path.push_back({{"action", link.action},
                    {"rank", link.pp_rank},
                    {"start", link.start},
                    {"end", link.end},
                    {"after", sim::Name(link.after)}});
  }
  return path;
}

Json ReportJson(const schedule::Schedule& schedule, const StepCosts& costs,
                const SimulatedSchedule& simulated) {
  const sim::Report& report = simulated.report;
  Json ranks = Json::array();
  for (const sim::RankReport& rank : report.ranks) {
    ranks.push_back({{"busy", rank.busy},
                     {"peak_in_flight", rank.peak_in_flight},
                     {"peak_stash_bytes", rank.peak_stash_bytes},
                     {"peak_buffer_bytes", rank.peak_buffer_bytes},
                     {"warmup_idle", rank.warmup_idle},
                     {"steady_idle", rank.steady_idle},
                     {"internal_idle", rank.internal_idle},
                     {"cooldown_idle", rank.cooldown_idle}});
  }
  Json json = {{"schedule", schedule.name},
               {"stages", schedule.num_stages},
               {"microbatches", schedule.num_microbatches},
               {"makespan", report.makespan},
               {"bubble_fraction", report.bubble_fraction},
               {"span_bubble_fraction", report.span_bubble_fraction},
               {"step_time", report.step_time},
               {"step_bubble_fraction", report.step_bubble_fraction}};
  if (!costs.measured.empty()) json["prediction_from"] = costs.measured;
  if (simulated.bound.has_value()) {
    json["lower_bound"] = simulated.bound->makespan;
    json["gap"] = simulated.gap();
    json["bound"] = BoundJson(*simulated.bound);
  }
  json["messages"] = report.num_messages;
  json["ranks"] = std::move(ranks);
  json["critical_path"] = CriticalPathJson(report);
  return json;
}

// Describes what the longest chain consists of, and where it changes ranks.
std::string CriticalPathText(const sim::Report& report) {
  double messages = 0;
  int changes = 0;
  for (std::size_t i = 0; i < report.critical_path.size(); ++i) {
    const sim::CriticalLink& link = report.critical_path[i];
    if (absl::StrContains(link.action, "SEND")) messages += link.end - link.start;
    if (i > 0 && link.pp_rank != report.critical_path[i - 1].pp_rank) ++changes;
  }
  return absl::StrFormat("critical path of %s: changes rank %s, %g of it in messages\n",
                         Counted(std::ssize(report.critical_path), "link"),
                         Counted(changes, "time"), messages);
}

std::string BoundText(const SimulatedSchedule& simulated) {
  if (!simulated.bound.has_value()) return "";
  const schedule::Bound& bound = *simulated.bound;
  return absl::StrFormat(
      "lower bound %g (work %g, fill %g, imbalance %g, communication %g, memory %g), exceeded by "
      "%s\n",
      bound.makespan, bound.work, bound.fill, bound.imbalance, bound.communication, bound.memory,
      FormatPercent(simulated.gap()));
}

// The figures of one step that stands alone, or of the first of several that run into each other.
std::string TimesText(const SimulatedSchedule& simulated) {
  const sim::Report& report = simulated.report;
  const std::string in_a_row =
      absl::StrFormat("a step in a row of them takes %g, bubble %s\n", report.step_time,
                      FormatPercent(report.step_bubble_fraction));
  if (!simulated.flushes) {
    return absl::StrCat(
        in_a_row,
        "without a flush a step has no makespan; what follows is of one body of the "
        "program, begun on all ranks at once\n");
  }
  return absl::StrFormat("makespan %g\nbubble %s of the makespan, %s of the longest rank\n%s",
                         report.makespan, FormatPercent(report.bubble_fraction),
                         FormatPercent(report.span_bubble_fraction),
                         report.step_time != report.makespan ? in_a_row : "");
}

std::string ReportText(const SimulatedSchedule& simulated) {
  const sim::Report& report = simulated.report;
  Table table({"RANK", "BUSY", "WARMUP IDLE", "STEADY IDLE", "INTERNAL IDLE", "COOLDOWN IDLE",
               "PEAK IN FLIGHT"});
  for (std::size_t i = 0; i < report.ranks.size(); ++i) {
    const sim::RankReport& rank = report.ranks[i];
    table.Add({absl::StrCat(i), absl::StrCat(rank.busy), absl::StrCat(rank.warmup_idle),
               absl::StrCat(rank.steady_idle), absl::StrCat(rank.internal_idle),
               absl::StrCat(rank.cooldown_idle), absl::StrCat(rank.peak_in_flight)});
  }
  return absl::StrCat(TimesText(simulated), BoundText(simulated), CriticalPathText(report),
                      table.ToString());
}

absl::StatusOr<ExitCode> Simulate(const Context& context, const SimulateOptions& options) {
  ASSIGN_OR_RETURN(const StepCosts costs, ReadCosts(options.costs));
  ASSIGN_OR_RETURN(LoadedSchedule loaded, LoadSchedule(options.source, costs));
  if (!loaded.remark.empty()) Say(context, loaded.remark);
  const StepOptions step = {.max_in_flight = options.source.sizes.max_in_flight(),
                            .barrier = !options.no_barrier};
  ASSIGN_OR_RETURN(const schedule::Schedule schedule,
                   WithVocabulary(std::move(loaded.schedule), costs, step));
  ASSIGN_OR_RETURN(const SimulatedSchedule simulated, SimulateSchedule(schedule, costs, step));
  if (context.json()) {
    PrintJson(context, ReportJson(schedule, costs, simulated));
  } else {
    context.terminal.out << PredictionText(costs, schedule.num_ranks()) << ReportText(simulated)
                         << std::flush;
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
        app.add_flag("--no-barrier", options.no_barrier,
                     "Let each rank update its weights, and begin the next step, when its own "
                     "gradients are complete");
      },
      Simulate);
  command->footer(absl::StrCat(
      "bubble_fraction is 1 - busy / (P * makespan); the span metric counts each rank "
      "from its own first\nstart to its own last end. A microbatch is in flight from "
      "the start of its F to the end of its W (or B).\n"
      "step_time is what one more step adds to several in a row: less than the makespan with "
      "--no-barrier\nand for families without a flush, which have no lower bound.\n"
      "With S or T in --cost every rank computes a part of the head: S its logits, T the loss and "
      "the\ngradients of the head, each for one microbatch. F, I, W and B of the last stage are "
      "then those of its\nlayers alone. Such a step has no lower bound.\n"
      "No schedule of these sizes, placement and costs whose ranks hold no more in flight"
      " (than --memory,\nor else than this one's peak) beats lower_bound.\n\n",
      kCostsFileHelp,
      "\n\nExamples:\n"
      "  takt schedule simulate 1f1b --ranks 4 --microbatches 8\n"
      "  takt schedule simulate zb-h2 --ranks 4 --microbatches 8 --no-barrier\n"
      "  takt schedule simulate 1f1b --ranks 4 --microbatches 8 --cost F=1,I=1,W=1,S=0.5,T=1\n"
      "  takt -o json schedule simulate mine.csv --cost F=1,I=1.1,W=0.7,comm=0.1"));
}

}  // namespace takt::cli
