// SPDX-License-Identifier: Apache-2.0
// Measures how long steps of real jobs take beside what plans predict: with a profile of this
// machine, and from FLOPs alone.
#include "tests/bench/plan_truth.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "tests/bench/commands.h"
#include "tests/bench/plan_truth_jobs.h"
#include "tests/bench/plan_truth_machine.h"
#include "tests/bench/plan_truth_report.h"
#include "tests/bench/table.h"

namespace takt::bench::plan_truth_command {
namespace {

constexpr std::array kGroups = {TruthGroup::kReal, TruthGroup::kOversubscribed,
                                TruthGroup::kEmulated};
constexpr double kLimit = 0.10, kEmulatedLimit = 0.02;

double LimitOf(TruthGroup group) {
  return group == TruthGroup::kEmulated ? kEmulatedLimit : kLimit;
}

struct TruthRow {
  config::JobSpec job;
  TruthGroup group = TruthGroup::kReal;
  std::string schedule;  // the planned one
  std::int64_t parameters = 0;
  StepTiming measured;
  double predicted_seconds = 0, old_predicted_seconds = 0;

  double error() const { return predicted_seconds / measured.seconds - 1; }
  double old_error() const { return old_predicted_seconds / measured.seconds - 1; }
  bool holds() const { return std::abs(error()) <= LimitOf(group); }
};

nlohmann::json ToJson(const TruthRow& row) {
  const config::JobSpec& job = row.job;
  const std::vector<model::Recompute>& recompute = job.parallelism.recompute;
  return {{"name", job.name},
          {"group", std::string(Name(row.group))},
          {"ranks", RanksOf(job)},
          {"threads", ThreadsOf(job)},
          {"precision", job.precision == config::Precision::kBf16 ? "bf16" : "f32"},
          {"schedule", row.schedule},
          {"recompute", recompute.empty() ? "none" : std::string(model::Name(recompute.front()))},
          {"vocab", job.model.vocab},
          {"parameters", row.parameters},
          {"measured_seconds", row.measured.seconds},
          {"spread", row.measured.spread},
          {"predicted_seconds", row.predicted_seconds},
          {"error", row.error()},
          {"old_predicted_seconds", row.old_predicted_seconds},
          {"old_error", row.old_error()},
          {"limit", LimitOf(row.group)},
          {"holds", row.holds()}};
}

nlohmann::json ToJson(const ErrorSummary& summary) {
  return {{"within_limit", summary.within},
          {"median_error", summary.median},
          {"largest_error", summary.largest}};
}

absl::StatusOr<TruthRow> Measure(const config::JobSpec& job, TruthGroup group, int steps,
                                 TruthMachine& machine) {
  const auto profile = std::make_shared<profile::Profile>();
  RETURN_IF_ERROR(machine.Learn(job, RanksOf(job), *profile));
  ASSIGN_OR_RETURN(const plan::Plan plan,
                   plan::MakePlan(job, TruthMachine::OptionsFor(job, profile)));
  ASSIGN_OR_RETURN(const plan::PlanOptions old_options, machine.OptionsWithoutProfile(job));
  ASSIGN_OR_RETURN(const plan::Plan old_plan, plan::MakePlan(Pinned(job, plan), old_options));
  ASSIGN_OR_RETURN(const std::vector<double> first, machine.StepSeconds(job, plan, steps));
  ASSIGN_OR_RETURN(const std::vector<double> second, machine.StepSeconds(job, plan, steps));
  return TruthRow{.job = job,
                  .group = group,
                  .schedule = plan.schedule.name,
                  .parameters = plan.model.num_parameters(),
                  .measured = TimingOf(first, second),
                  .predicted_seconds = plan.predicted_step_seconds,
                  .old_predicted_seconds = old_plan.predicted_step_seconds};
}

// Collects the rows of one group, and prints each of them when it is measured.
class GroupReport {
 public:
  GroupReport(TruthGroup group, bool json)
      : group_(group),
        json_(json),
        table_(json, {{std::string(Name(group)), "name", 36},
                      {"parameters M", "parameters", 0, 1, 1e-6},
                      {"step ms", "measured_seconds", 7, 1, 1e3},
                      {"spread %", "spread", 0, 1, 100},
                      {"predicted", "predicted_seconds", 0, 1, 1e3},
                      {"error %", "error", 0, 1, 100},
                      {"by FLOPs", "old_predicted_seconds", 0, 1, 1e3},
                      {"error %", "old_error", 0, 1, 100}}) {}

  void Add(const TruthRow& row) {
    rows_.push_back(ToJson(row));
    errors_.push_back(row.error());
    old_errors_.push_back(row.old_error());
    table_.Add(rows_.back(), row.holds() ? "" : "over");
  }

  const std::vector<nlohmann::json>& rows() const { return rows_; }
  nlohmann::json Summary() const {
    const ErrorSummary by_profile = Summarise(errors_, LimitOf(group_));
    nlohmann::json summary = {{"jobs", by_profile.jobs},
                              {"limit", LimitOf(group_)},
                              {"profile", ToJson(by_profile)},
                              {"old", ToJson(Summarise(old_errors_, LimitOf(group_)))}};
    if (group_ == TruthGroup::kReal) summary["holds"] = IsTrue(by_profile, LimitOf(group_));
    if (group_ == TruthGroup::kEmulated) summary["holds"] = by_profile.within == by_profile.jobs;
    return summary;
  }

  void PrintSummary() const {
    if (json_ || rows_.empty()) return;
    const auto print = [&](const char* costs, const std::vector<double>& errors) {
      const ErrorSummary summary = Summarise(errors, LimitOf(group_));
      absl::PrintF("%s: median error %.1f %%, %d of %d within %.0f %%, largest %.1f %%\n", costs,
                   100 * summary.median, summary.within, summary.jobs, 100 * LimitOf(group_),
                   100 * summary.largest);
    };
    print("with the profile", errors_);
    print("by FLOPs", old_errors_);
    absl::PrintF("\n");
  }

 private:
  const TruthGroup group_;
  const bool json_;
  Table table_;
  std::vector<nlohmann::json> rows_;
  std::vector<double> errors_, old_errors_;
};

absl::Status MeasureTruth(const PlanTruthOptions& options) {
  ASSIGN_OR_RETURN(const std::vector<config::JobSpec> jobs,
                   Select(TruthJobs(), options.jobs, options.only));
  const TruthTokens tokens(jobs);
  TruthMachine machine(tokens.path());
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  nlohmann::json rows = nlohmann::json::array(), summaries;
  for (const TruthGroup group : kGroups) {
    GroupReport report(group, options.json());
    for (const config::JobSpec& job : jobs) {
      if (GroupOf(job, cores) != group) continue;
      const absl::StatusOr<TruthRow> row = Measure(job, group, options.steps, machine);
      if (!row.ok()) return Annotate(row.status(), absl::StrCat("job ", job.name));
      report.Add(*row);
    }
    report.PrintSummary();
    for (const nlohmann::json& row : report.rows()) rows.push_back(row);
    if (!report.rows().empty()) summaries[std::string(Name(group))] = report.Summary();
  }
  if (!options.json()) return absl::OkStatus();
  const nlohmann::json object = {{"rows", rows}, {"summary", summaries}};
  absl::PrintF("%s\n", object.dump());
  return absl::OkStatus();
}

}  // namespace

void Add(CLI::App& app, absl::Status& result) {
  AddCommand<PlanTruthOptions>(
      app, result, "plan-truth", "Predicted steps of real jobs beside measured ones",
      [](CLI::App& command, PlanTruthOptions& options) {
        command.add_option("--jobs", options.jobs, "Only so many jobs, the first; 0: all")
            ->check(CLI::NonNegativeNumber);
        command.add_option("--steps", options.steps, "Steps of each run; fewer if they are long")
            ->check(CLI::Range(1, 100000));
        command.add_option("--only", options.only, "Only the job of this name");
        command.add_flag("--choice", options.choice,
                         "Run the best candidates of eight jobs, and random ones beside them");
        command.add_option("--seed", options.seed, "Of the random candidates");
      },
      [](const PlanTruthOptions& options) {
        return options.choice ? MeasureChoice(options) : MeasureTruth(options);
      });
}

}  // namespace takt::bench::plan_truth_command
