// SPDX-License-Identifier: Apache-2.0
// Sends jobs to MLflow by its REST interface, version 2.0. A job is a run with the tag
// `takt_job_id`, so that it is found again: nothing is kept here. Metrics have the names that event
// files have.
#pragma once

#include <string>
#include <vector>

#include "coordinator/tracking/http_client.h"
#include "coordinator/tracking/tracker.h"
#include "nlohmann/json.hpp"

namespace takt::tracking {

class MlflowTracker final : public Tracker {
 public:
  // http: borrowed.
  explicit MlflowTracker(HttpClient* http) : http_(http) {}

  absl::StatusOr<TrackedRun> Open(const TrackedJob& job) override;
  absl::Status Append(const std::string& run_id,
                      const std::vector<store::StepRecord>& steps) override;
  absl::Status Close(const std::string& run_id, store::JobState state, absl::Time end) override;

 private:
  absl::StatusOr<nlohmann::json> Call(const std::string& method, const nlohmann::json& request);
  absl::StatusOr<std::string> FindExperiment(const std::string& name);
  // Returns the id of the run.
  absl::StatusOr<std::string> CreateRun(const TrackedJob& job, const std::string& experiment_id);

  HttpClient* const http_;
};

}  // namespace takt::tracking
