// SPDX-License-Identifier: Apache-2.0
// Prints the plans that we would choose beside the configurations that ran.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/bench/published.h"
#include "tests/bench/published_choice.h"
#include "tests/bench/table.h"

namespace takt::bench {
namespace {

// The planner takes the smallest of the plans that are within 1 % of the fastest.
constexpr double kMostRatio = 1.01;

// Names the published way to do some work whose predicted step is shortest.
struct BestPublished {
  const PublishedRun* run = nullptr;
  double seconds = 0;
  bool fits = false;  // as one of our plans
};

// Returns the best of the runs that do the work of `first` on as large groups of GPUs. Runs that
// fit come before others.
absl::StatusOr<BestPublished> BestOf(const PublishedCases& cases, const PublishedMachines& machines,
                                     const PublishedRun& first) {
  BestPublished best;
  for (const PublishedRun& run : cases.runs) {
    const bool same_groups =
        run.tensor == first.tensor && run.context_parallel == first.context_parallel;
    if (!same_groups || !DoTheSameWork(run, first)) continue;
    ASSIGN_OR_RETURN(const RunPrediction predicted, PredictRun(run, machines.Of(run)));
    const bool is_better = best.run == nullptr || (predicted.fits() && !best.fits) ||
                           (predicted.fits() == best.fits && predicted.seconds < best.seconds);
    if (is_better) best = {.run = &run, .seconds = predicted.seconds, .fits = predicted.fits()};
  }
  return best;
}

nlohmann::json RowOf(const std::string& group, int gpus, int global_batch,
                     const std::string& published, double published_seconds,
                     const std::string& chosen, double seconds) {
  const double ratio = seconds / published_seconds;
  return {{"part", "choices"},
          {"group", group},
          {"gpus", gpus},
          {"global_batch", global_batch},
          {"published", published},
          {"published_predicted_seconds", published_seconds},
          {"chosen", chosen},
          {"predicted_seconds", seconds},
          {"ratio", ratio},
          {"limit", kMostRatio},
          {"holds", ratio <= kMostRatio}};
}

// Collects the rows, and prints each.
class Choices {
 public:
  Choices(bool json, nlohmann::json& rows)
      : rows_(rows),
        table_(json, {{"group", "group", 24},
                      {"GPUs", "gpus", 5},
                      {"batch", "global_batch"},
                      {"published", "published", 26},
                      {"predicted s", "published_predicted_seconds", 0, 3},
                      {"chosen", "chosen", 46},
                      {"predicted s", "predicted_seconds", 0, 3},
                      {"ratio", "ratio", 6, 3}}) {}

  void Add(nlohmann::json row, const std::string& remark) {
    table_.Add(row, row.at("holds").get<bool>() ? remark : absl::StrCat("over ", remark));
    rows_.push_back(std::move(row));
  }

 private:
  nlohmann::json& rows_;
  Table table_;
};

absl::Status AddRun(const PublishedCases& cases, const PublishedMachines& machines,
                    const PublishedRun& first, Choices& choices) {
  ASSIGN_OR_RETURN(const BestPublished best, BestOf(cases, machines, first));
  const std::optional<ChosenWay> chosen = ChooseFor(*best.run, machines.Of(first));
  nlohmann::json row =
      RowOf(first.group, first.gpus(), first.global_batch, best.run->Name(), best.seconds,
            chosen ? chosen->name : "nothing fits", chosen ? chosen->seconds : best.seconds);
  row["published_fits"] = best.fits;
  // A plan that does not fit could not be better.
  if (!best.fits) row["holds"] = true;
  choices.Add(std::move(row), best.fits ? "" : "our plan of the published one does not fit");
  return absl::OkStatus();
}

absl::Status AddStages(const MeasuredStages& stages, Choices& choices) {
  std::string published;
  double least = 0;
  for (const MeasuredRun& run : stages.runs) {
    ASSIGN_OR_RETURN(const plan::Plan plan, PlanStages(stages, run.schedule));
    if (!published.empty() && plan.predicted_step_seconds >= least) continue;
    published = run.schedule;
    least = plan.predicted_step_seconds;
  }
  ASSIGN_OR_RETURN(const plan::Plan plan, PlanStages(stages, "auto"));
  const int chunks = plan.schedule.num_stages / plan.mesh.pp_size;
  choices.Add(
      RowOf(stages.group, stages.ranks, stages.microbatches * stages.microbatch, published, least,
            absl::StrCat(plan.schedule.name, " x", chunks), plan.predicted_step_seconds),
      "");
  return absl::OkStatus();
}

// Returns whether no run before this one does the same work on as large groups.
bool IsFirstOfItsWork(const PublishedCases& cases, const PublishedRun& run) {
  const auto first = std::ranges::find_if(cases.runs, [&](const PublishedRun& other) {
    return other.tensor == run.tensor && other.context_parallel == run.context_parallel &&
           DoTheSameWork(other, run);
  });
  return &*first == &run;
}

}  // namespace

absl::Status ReportChoices(const PublishedCases& cases, const PublishedMachines& machines,
                           const PublishedOptions& options, nlohmann::json& object) {
  Choices choices(options.json(), object["rows"]);
  for (const PublishedRun& run : cases.runs) {
    if (IsFirstOfItsWork(cases, run)) RETURN_IF_ERROR(AddRun(cases, machines, run, choices));
  }
  for (const MeasuredStages& stages : cases.stages) RETURN_IF_ERROR(AddStages(stages, choices));
  return absl::OkStatus();
}

}  // namespace takt::bench
