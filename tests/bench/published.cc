// SPDX-License-Identifier: Apache-2.0
// Compares what plans predict with steps that others published, and the plans that we would choose
// with the configurations that ran; and measures what planning for large clusters takes.
#include "tests/bench/published.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "tests/bench/commands.h"

namespace takt::bench {
namespace {

absl::StatusOr<FittedConstants> FitTo(const std::vector<const PublishedRun*>& runs,
                                      const Hardware& hardware) {
  std::vector<double> measured;
  for (const PublishedRun* run : runs) measured.push_back(run->seconds);
  const auto predict =
      [&](const FittedConstants& constants) -> absl::StatusOr<std::vector<double>> {
    const MachineModel machine{.hardware = hardware, .constants = constants};
    std::vector<double> seconds;
    for (const PublishedRun* run : runs) {
      const absl::StatusOr<RunPrediction> prediction = PredictRun(*run, machine);
      if (!prediction.ok())
        return Annotate(prediction.status(), absl::StrCat(run->group, " ", run->Name()));
      seconds.push_back(prediction->seconds);
    }
    return seconds;
  };
  return FitConstants(measured, predict);
}

}  // namespace

absl::StatusOr<PublishedMachines> PublishedMachines::Fit(const PublishedCases& cases,
                                                         const PublishedOptions& options) {
  PublishedMachines machines;
  for (const PublishedRun& run : cases.runs) {
    if (machines.fitted_.contains(run.cluster)) continue;
    ASSIGN_OR_RETURN(const Hardware hardware, ReadHardware(options.ClusterPath(run.cluster)));
    std::vector<const PublishedRun*> runs;
    for (const PublishedRun& other : cases.runs) {
      if (other.cluster == run.cluster && !other.measured_layers) runs.push_back(&other);
    }
    MachineModel& machine = machines.fitted_[run.cluster];
    machine.hardware = hardware;
    if (!runs.empty()) {
      ASSIGN_OR_RETURN(machine.constants, FitTo(runs, hardware));
    }
    MachineModel& measured = machines.measured_[run.cluster];
    measured = machine;
    for (const MeasuredLayer& layer : cases.layers) {
      if (layer.cluster == run.cluster) measured.layers.push_back(layer);
    }
  }
  return machines;
}

namespace published_command {
namespace {

absl::Status Run(const PublishedOptions& options) {
  nlohmann::json object = {{"rows", nlohmann::json::array()}};
  ASSIGN_OR_RETURN(const PublishedCases cases, ReadPublishedCases(options.CasesFolder()));
  if (options.has("planning")) RETURN_IF_ERROR(ReportPlanning(cases, options, object));
  if (options.has("predictions") || options.has("choices")) {
    ASSIGN_OR_RETURN(const PublishedMachines machines, PublishedMachines::Fit(cases, options));
    if (options.has("predictions"))
      RETURN_IF_ERROR(ReportPredictions(cases, machines, options, object));
    if (options.has("choices")) RETURN_IF_ERROR(ReportChoices(cases, machines, options, object));
  }
  if (options.json()) absl::PrintF("%s\n", object.dump());
  return absl::OkStatus();
}

}  // namespace

void Add(CLI::App& app, absl::Status& result) {
  AddCommand<PublishedOptions>(
      app, result, "published", "Predicted steps beside those that others published",
      [](CLI::App& command, PublishedOptions& options) {
        command.add_option("--root", options.root, "The source tree");
        command
            .add_option("--part", options.part,
                        "Only this: planning for large clusters, predictions, or choices")
            ->check(CLI::IsMember({"all", "planning", "predictions", "choices"}));
      },
      Run);
}

}  // namespace published_command
}  // namespace takt::bench
