// SPDX-License-Identifier: Apache-2.0
// Prints predicted steps beside published ones.
#include <algorithm>
#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "tests/bench/plan_truth_report.h"
#include "tests/bench/published.h"
#include "tests/bench/published_fit.h"
#include "tests/bench/table.h"

namespace takt::bench {
namespace {

constexpr double kMostRegret = 1.05;

// Holds one run and what is predicted for it.
struct Compared {
  std::string group, run, costs;  // costs: where they come from
  int gpus = 0;
  double measured = 0, predicted = 0;  // seconds of a step

  double error() const { return predicted / measured - 1; }
};

nlohmann::json ToJson(const Compared& compared) {
  return {{"part", "predictions"},
          {"group", compared.group},
          {"run", compared.run},
          {"costs", compared.costs},
          {"gpus", compared.gpus},
          {"measured_seconds", compared.measured},
          {"predicted_seconds", compared.predicted},
          {"ratio", compared.predicted / compared.measured},
          {"error", compared.error()}};
}

// Collects runs whose predictions are judged together.
struct Group {
  std::vector<double> measured, predicted, errors;
  bool same_work = true;  // so that a planner could choose among them

  void Add(const Compared& compared) {
    measured.push_back(compared.measured);
    predicted.push_back(compared.predicted);
    errors.push_back(compared.error());
  }
};

// Keeps the groups in the order of their first runs.
class Groups {
 public:
  Group& Of(const std::string& name) {
    const auto [index, is_new] = index_.try_emplace(name, groups_.size());
    if (is_new) groups_.push_back({name, {}});
    return groups_[index->second].second;
  }
  const std::vector<std::pair<std::string, Group>>& all() const { return groups_; }

 private:
  std::map<std::string, std::size_t> index_;
  std::vector<std::pair<std::string, Group>> groups_;
};

nlohmann::json ToJson(const std::string& name, const Group& group) {
  const ErrorSummary errors = Summarise(group.errors, 0);
  nlohmann::json row = {{"group", name},
                        {"runs", errors.jobs},
                        {"median_error", errors.median},
                        {"largest_error", errors.largest}};
  if (errors.jobs < 2) return row;
  row["tau"] = KendallTau(group.measured, group.predicted);
  if (!group.same_work) return row;
  const double regret = Regret(group.measured, group.predicted);
  row["regret"] = regret;
  row["limit"] = kMostRegret;
  row["holds"] = regret <= kMostRegret;
  return row;
}

// Returns the number as text, or a dash if the row does not have it.
std::string NumberOrDash(const nlohmann::json& row, const char* key) {
  return row.contains(key) ? absl::StrFormat("%.2f", row.at(key).get<double>()) : "-";
}

void PrintGroups(const nlohmann::json& groups) {
  Table table(false, {{"group", "group", 24},
                      {"runs", "runs"},
                      {"median error %", "median_error", 0, 1, 100},
                      {"largest %", "largest_error", 0, 1, 100},
                      {"tau", "tau", 5},
                      {"regret", "regret"}});
  for (nlohmann::json row : groups) {
    const bool over = row.contains("holds") && !row.at("holds").get<bool>();
    row["tau"] = NumberOrDash(row, "tau");
    row["regret"] = NumberOrDash(row, "regret");
    table.Add(row, over ? "over" : "");
  }
  absl::PrintF("\n");
}

void PrintConstants(const std::string& cluster, const MachineModel& machine) {
  absl::PrintF("%s: products reach %.3f of %.0f TFLOP/s, %.3f ns for each value of an activation\n",
               cluster, machine.constants.peak_share, machine.hardware.peak * 1e-12,
               machine.constants.seconds_per_value * 1e9);
}

nlohmann::json ToJson(const std::string& cluster, const MachineModel& machine) {
  return {{"cluster", cluster},
          {"peak_share", machine.constants.peak_share},
          {"seconds_per_value", machine.constants.seconds_per_value}};
}

// Predicts runs one after the other, and prints each when it is predicted.
class Predictions {
 public:
  Predictions(bool json, nlohmann::json& rows)
      : rows_(rows),
        table_(json, {{"group", "group", 24},
                      {"run", "run", 26},
                      {"costs", "costs", 8},
                      {"GPUs", "gpus", 5},
                      {"step s", "measured_seconds", 7, 3},
                      {"predicted", "predicted_seconds", 0, 3},
                      {"error %", "error", 0, 1, 100}}) {}

  // remark: stands behind the line.
  void Add(const Compared& compared, bool same_work, const std::string& remark,
           const nlohmann::json& more = nlohmann::json::object()) {
    nlohmann::json row = ToJson(compared);
    row.update(more);
    table_.Add(row, remark);
    rows_.push_back(std::move(row));
    Group& group = groups_.Of(compared.group);
    group.Add(compared);
    group.same_work &= same_work;
  }

  const Groups& groups() const { return groups_; }

 private:
  nlohmann::json& rows_;
  Table table_;
  Groups groups_;
};

const PublishedRun& FirstOfGroup(const PublishedCases& cases, const std::string& group) {
  return *std::ranges::find(cases.runs, group, &PublishedRun::group);
}

absl::Status AddRuns(const PublishedCases& cases, const PublishedMachines& machines,
                     Predictions& predictions) {
  for (const PublishedRun& run : cases.runs) {
    const absl::StatusOr<RunPrediction> predicted = PredictRun(run, machines.Of(run));
    if (!predicted.ok())
      return Annotate(predicted.status(), absl::StrCat(run.group, " ", run.Name()));
    const std::string remark =
        predicted->fits() ? ""
                          : absl::StrFormat("our plan of it needs %.0f of %.0f GB",
                                            static_cast<double>(predicted->memory_bytes) * 1e-9,
                                            static_cast<double>(predicted->limit_bytes) * 1e-9);
    predictions.Add({.group = run.group,
                     .run = run.Name(),
                     .costs = run.measured_layers ? "layers" : "fitted",
                     .gpus = run.gpus(),
                     .measured = run.seconds,
                     .predicted = predicted->seconds},
                    DoTheSameWork(run, FirstOfGroup(cases, run.group)), remark,
                    {{"memory_bytes", predicted->memory_bytes},
                     {"memory_limit_bytes", predicted->limit_bytes},
                     {"fits", predicted->fits()}});
  }
  return absl::OkStatus();
}

absl::Status AddStages(const PublishedCases& cases, Predictions& predictions) {
  for (const MeasuredStages& stages : cases.stages) {
    for (const MeasuredRun& run : stages.runs) {
      ASSIGN_OR_RETURN(const double seconds, PredictStages(stages, run));
      predictions.Add({.group = stages.group,
                       .run = absl::StrCat(run.schedule, run.barrier ? "" : ", no barrier"),
                       .costs = "stages",
                       .gpus = stages.ranks,
                       .measured = run.seconds,
                       .predicted = seconds},
                      true, "");
    }
  }
  for (const MeasuredRanks& ranks : cases.ranks) {
    ASSIGN_OR_RETURN(const double seconds, PredictRanks(ranks));
    predictions.Add({.group = "vocabulary-ranks",
                     .run = ranks.name,
                     .costs = "ranks",
                     .gpus = static_cast<int>(ranks.forward_seconds.size()),
                     .measured = ranks.seconds,
                     .predicted = seconds},
                    true, "");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReportPredictions(const PublishedCases& cases, const PublishedMachines& machines,
                               const PublishedOptions& options, nlohmann::json& object) {
  for (const auto& [cluster, machine] : machines.fitted()) {
    if (!options.json()) PrintConstants(cluster, machine);
    object["fits"].push_back(ToJson(cluster, machine));
  }
  Predictions predictions(options.json(), object["rows"]);
  RETURN_IF_ERROR(AddRuns(cases, machines, predictions));
  RETURN_IF_ERROR(AddStages(cases, predictions));
  for (const auto& [name, group] : predictions.groups().all())
    object["groups"].push_back(ToJson(name, group));
  for (const LeftOutCase& left_out : cases.left_out)
    object["left_out"].push_back({{"case", left_out.what}, {"reason", left_out.why}});
  if (options.json()) return absl::OkStatus();
  absl::PrintF("\n");
  PrintGroups(object["groups"]);
  for (const LeftOutCase& left_out : cases.left_out)
    absl::PrintF("left out: %s: %s\n", left_out.what, left_out.why);
  absl::PrintF("\n");
  return absl::OkStatus();
}

}  // namespace takt::bench
