// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/base/report.h"
#include "cli/base/text.h"
#include "cli/schedule/commands.h"
#include "cli/schedule/schedule_source.h"
#include "cli/schedule/simulated_schedule.h"
#include "cli/schedule/step_costs.h"
#include "common/base/status.h"
#include "common/schedule/generate.h"

namespace takt::cli {
namespace {

struct CompareOptions {
  ScheduleSizes sizes;
  CostOptions costs;
};

struct Candidate {
  std::string_view family;
  int num_chunks = 0;
  absl::StatusOr<SimulatedSchedule> simulated;
};

Candidate Simulated(std::string_view name, const schedule::Schedule& schedule,
                    const CompareOptions& options, const StepCosts& costs) {
  return {.family = name,
          .num_chunks = schedule.placement == schedule::Placement::kBidirectional
                            ? 1
                            : schedule.num_stages / schedule.num_ranks(),
          .simulated =
              SimulateSchedule(schedule, costs, {.max_in_flight = options.sizes.max_in_flight()})};
}

// Leaves out the sizes that a family does not take: only some families have V, N and K.
Candidate Try(const schedule::Family& family, const CompareOptions& options,
              schedule::GenerateOptions sizes, const StepCosts& costs) {
  if (!family.uses_chunks) sizes.num_chunks.reset();
  if (!family.uses_group) sizes.group.reset();
  const absl::StatusOr<schedule::Schedule> schedule = schedule::Generate(family.name, sizes);
  if (!schedule.ok()) return {.family = family.name, .simulated = schedule.status()};
  return Simulated(family.name, *schedule, options, costs);
}

// Searches with as many chunks for each rank as one of the families has.
Candidate TryAuto(int num_chunks, const CompareOptions& options, const StepCosts& costs) {
  ScheduleSource source{.name = "auto", .sizes = options.sizes};
  source.sizes.chunks = num_chunks;
  source.sizes.group.reset();
  const absl::StatusOr<LoadedSchedule> found = LoadSchedule(source, costs);
  if (!found.ok()) {
    return {.family = "auto", .num_chunks = num_chunks, .simulated = found.status()};
  }
  return Simulated("auto", found->schedule, options, costs);
}

// Returns why a family cannot run at these sizes, without the grid of the message.
FieldError ReasonOf(const absl::Status& status) {
  const std::vector<FieldError> errors = FieldErrorsOf(status);
  return errors.empty() ? FieldError{.rule = std::string(status.message())} : errors.front();
}

Json CandidateJson(const Candidate& candidate) {
  if (!candidate.simulated.ok()) {
    const FieldError reason = ReasonOf(candidate.simulated.status());
    return {{"name", candidate.family},
            {"refused",
             {{"field", reason.field},
              {"value", reason.value},
              {"rule", reason.rule},
              {"fix", reason.fix}}}};
  }
  const SimulatedSchedule& simulated = *candidate.simulated;
  return {{"name", candidate.family},
          {"chunks", candidate.num_chunks},
          {"makespan", simulated.report.makespan},
          {"bubble_fraction", simulated.report.bubble_fraction},
          {"span_bubble_fraction", simulated.report.span_bubble_fraction},
          {"peak_in_flight", simulated.report.peak_in_flight()},
          {"messages", simulated.report.num_messages},
          {"lower_bound", simulated.bound->makespan},
          {"gap", simulated.gap()}};
}

// Sorts the fastest first; of equally fast ones, the one that holds least in flight.
std::string CompareText(const std::vector<Candidate>& candidates) {
  std::vector<const Candidate*> ran, refused;
  for (const Candidate& candidate : candidates) {
    (candidate.simulated.ok() ? ran : refused).push_back(&candidate);
  }
  std::stable_sort(ran.begin(), ran.end(), [](const Candidate* a, const Candidate* b) {
    const auto key = [](const Candidate* candidate) {
      return std::pair(candidate->simulated->report.makespan,
                       candidate->simulated->report.peak_in_flight());
    };
    return key(a) < key(b);
  });
  Table table({"FAMILY", "CHUNKS", "MAKESPAN", "BUBBLE", "OF LONGEST RANK", "PEAK", "MESSAGES",
               "ABOVE BOUND"});
  for (const Candidate* candidate : ran) {
    const SimulatedSchedule& simulated = *candidate->simulated;
    table.Add({std::string(candidate->family), absl::StrCat(candidate->num_chunks),
               absl::StrFormat("%g", simulated.report.makespan),
               FormatPercent(simulated.report.bubble_fraction),
               FormatPercent(simulated.report.span_bubble_fraction),
               absl::StrCat(simulated.report.peak_in_flight()),
               absl::StrCat(simulated.report.num_messages), FormatPercent(simulated.gap())});
  }
  if (refused.empty()) return table.ToString();
  Table reasons({"NOT HERE", "WHY"});
  for (const Candidate* candidate : refused) {
    const FieldError reason = ReasonOf(candidate->simulated.status());
    reasons.Add({std::string(candidate->family),
                 reason.field.empty()
                     ? reason.rule
                     : absl::StrCat(reason.field, " is ", reason.value, ": ", reason.rule)});
  }
  return absl::StrCat(table.ToString(), "\n", reasons.ToString());
}

absl::StatusOr<ExitCode> Compare(const Context& context, const CompareOptions& options) {
  ASSIGN_OR_RETURN(const StepCosts costs, ReadCosts(options.costs));
  if (costs.spreads_vocabulary) {
    return InvalidField({.field = "--cost",
                         .value = options.costs.cost,
                         .rule = "has S or T, which this table does not compare",
                         .fix = "simulate the families one by one with these costs"});
  }
  ASSIGN_OR_RETURN(const schedule::GenerateOptions sizes,
                   MakeGenerateOptions(options.sizes, costs.time));
  std::vector<Candidate> candidates;
  for (const schedule::Family& family : schedule::Families()) {
    // Without a flush a step has no makespan of its own.
    if (family.updates != schedule::Updates::kFlush) continue;
    candidates.push_back(Try(family, options, sizes, costs));
  }
  std::set<int> chunk_counts;
  for (const Candidate& candidate : candidates) {
    if (candidate.simulated.ok()) chunk_counts.insert(candidate.num_chunks);
  }
  for (const int num_chunks : chunk_counts) {
    candidates.push_back(TryAuto(num_chunks, options, costs));
  }
  const bool any = std::any_of(candidates.begin(), candidates.end(),
                               [](const Candidate& one) { return one.simulated.ok(); });
  if (!any) return candidates.front().simulated.status();
  if (context.json()) {
    Json families = Json::array();
    for (const Candidate& candidate : candidates) families.push_back(CandidateJson(candidate));
    Json json = {{"ranks", sizes.num_ranks},
                 {"microbatches", sizes.num_microbatches},
                 {"families", std::move(families)}};
    if (!costs.measured.empty()) json["prediction_from"] = costs.measured;
    PrintJson(context, json);
  } else {
    context.terminal.out << PredictionText(costs, sizes.num_ranks) << CompareText(candidates)
                         << std::flush;
  }
  return ExitCode::kDone;
}

}  // namespace

void AddScheduleCompare(CLI::App& schedule, Context& context) {
  CLI::App* command = AddCommand<CompareOptions>(
      schedule, context, "compare",
      "Compare all families that flush, and auto, at the same sizes and costs",
      [](CLI::App& app, CompareOptions& options) {
        DeclareScheduleSizes(app, options.sizes);
        DeclareCosts(app, options.costs);
      },
      Compare);
  command->footer(absl::StrCat(
      "Times of F, I, W and B are those of a chunk: with --chunks 2 a rank has twice the work. "
      "PEAK "
      "counts chunks,\nABOVE BOUND compares with what no schedule of that placement and V can beat "
      "within that peak (or --memory).\nFamilies that cannot run at these sizes come last, with "
      "the "
      "rule.\n\n",
      kCostsFileHelp,
      "\n\nExamples:\n"
      "  takt schedule compare --ranks 8 --microbatches 32\n"
      "  takt schedule compare --ranks 8 --microbatches 32 --chunks 4 --cost "
      "F=1,I=1.1,W=0.7,comm=0.1"));
}

}  // namespace takt::cli
