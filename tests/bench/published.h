// SPDX-License-Identifier: Apache-2.0
// Declares the parts of `takt-bench published`.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/bench/command.h"
#include "tests/bench/published_cases.h"
#include "tests/bench/published_machine.h"

namespace takt::bench {

struct PublishedOptions : CommonOptions {
  std::string root = TAKT_SOURCE_DIR;  // of the source tree, which has cases and clusters
  std::string part = "all";            // "all", "planning", "predictions" or "choices"

  bool has(const std::string& name) const { return part == "all" || part == name; }
  std::string ClusterPath(const std::string& cluster) const {
    return root + "/deploy/examples/clusters/" + cluster + ".yaml";
  }
  std::string CasesFolder() const { return root + "/tests/golden/published"; }
};

// Keeps the machines of all runs. Their constants are fitted to the runs of each cluster file.
class PublishedMachines {
 public:
  static absl::StatusOr<PublishedMachines> Fit(const PublishedCases& cases,
                                               const PublishedOptions& options);

  // Precondition: the run is one of the cases.
  const MachineModel& Of(const PublishedRun& run) const {
    return (run.measured_layers ? measured_ : fitted_).at(run.cluster);
  }
  const std::map<std::string, MachineModel>& fitted() const { return fitted_; }

 private:
  std::map<std::string, MachineModel> fitted_, measured_;  // by cluster
};

// Each of these prints tables, or adds its rows to object["rows"].

// Measures how the time and the memory of planning grow, up to 16,384 GPUs
// (published_planning.cc). It must be the first, because a process's peak memory only grows.
absl::Status ReportPlanning(const PublishedCases& cases, const PublishedOptions& options,
                            nlohmann::json& object);

// Compares predicted with published steps (published_predictions.cc).
absl::Status ReportPredictions(const PublishedCases& cases, const PublishedMachines& machines,
                               const PublishedOptions& options, nlohmann::json& object);

// Compares the plans that we would choose with the published ones, both as predicted
// (published_choices.cc).
absl::Status ReportChoices(const PublishedCases& cases, const PublishedMachines& machines,
                           const PublishedOptions& options, nlohmann::json& object);

}  // namespace takt::bench
