// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tracking/mlflow_tracker.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::tracking {
namespace {

using nlohmann::json;

constexpr char kRestPath[] = "/api/2.0/mlflow/";

// Returns the text at `key`, or "" if there is none.
std::string TextOf(const json& object, const char* key) {
  const auto it = object.is_object() ? object.find(key) : object.end();
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}

// Returns the part at `key`, or null if there is none.
json PartOf(const json& object, const char* key) {
  const auto it = object.is_object() ? object.find(key) : object.end();
  return it != object.end() ? *it : json();
}

// Servers write 64-bit numbers as numbers or as text.
std::int64_t NumberOf(const json& object, const char* key) {
  const json value = PartOf(object, key);
  std::int64_t number = 0;
  if (value.is_number_integer()) number = value.get<std::int64_t>();
  if (value.is_string() && !absl::SimpleAtoi(value.get<std::string>(), &number)) number = 0;
  return number;
}

absl::Status ErrorOf(const std::string& method, const HttpResponse& response) {
  const json body = json::parse(response.body, nullptr, /*allow_exceptions=*/false);
  std::string reason = TextOf(body, "message").substr(0, 300);
  // MLflow's check of host names, which comes before its handlers, answers with plain text.
  if (reason.empty()) reason = absl::Utf8SafeCHexEscape(response.body.substr(0, 300));
  const std::string text =
      absl::StrCat("MLflow answers ", method, " with ", response.status, ": ", reason);
  if (response.status == 401 || response.status == 403) return absl::PermissionDeniedError(text);
  if (response.status == 429 || response.status >= 500) return absl::UnavailableError(text);
  return absl::FailedPreconditionError(text);
}

const char* StatusOf(store::JobState state) {
  if (state == store::JobState::kSucceeded) return "FINISHED";
  return state == store::JobState::kCancelled ? "KILLED" : "FAILED";
}

// Adds what the step log has of one step. JSON has no infinity and no NaN.
void AddMetrics(const store::StepRecord& step, json& metrics) {
  const std::int64_t time = absl::ToUnixMillis(step.time);
  const auto add = [&](const char* name, double value) {
    if (!std::isfinite(value)) return;
    metrics.push_back(
        {{"key", name}, {"value", value}, {"timestamp", time}, {"step", step.step.value()}});
  };
  add("train/loss", step.loss);
  add("train/grad_norm", step.grad_norm);
  add("train/learning_rate", step.learning_rate);
  add("train/step_time_seconds", step.step_seconds);
  add("train/bubble_fraction", step.bubble_fraction);
  if (step.step_seconds > 0)
    add("train/tokens_per_second", static_cast<double>(step.tokens) / step.step_seconds);
  if (step.validation_loss.has_value()) add("validation/loss", *step.validation_loss);
}

}  // namespace

absl::StatusOr<json> MlflowTracker::Call(const std::string& method, const json& request) {
  // Text from elsewhere may not be UTF-8.
  const std::string body = request.dump(-1, ' ', false, json::error_handler_t::replace);
  ASSIGN_OR_RETURN(const HttpResponse response, http_->Post(kRestPath + method, body));
  if (response.status != 200) return ErrorOf(method, response);
  json answer = json::parse(response.body, nullptr, /*allow_exceptions=*/false);
  if (answer.is_discarded())
    return absl::UnavailableError(absl::StrCat("MLflow answers ", method, " without JSON"));
  return answer;
}

absl::StatusOr<std::string> MlflowTracker::FindExperiment(const std::string& name) {
  const json by_name = {{"filter", absl::StrCat("name = '", name, "'")}, {"max_results", 1}};
  ASSIGN_OR_RETURN(const json found, Call("experiments/search", by_name));
  for (const json& experiment : PartOf(found, "experiments")) {
    if (TextOf(experiment, "name") == name) return TextOf(experiment, "experiment_id");
  }
  json request = json::object();
  request["name"] = name;
  ASSIGN_OR_RETURN(const json created, Call("experiments/create", request));
  return TextOf(created, "experiment_id");
}

absl::StatusOr<std::string> MlflowTracker::CreateRun(const TrackedJob& job,
                                                     const std::string& experiment_id) {
  json tags = json::array();
  const auto tag = [&](const char* key, const std::string& value) {
    tags.push_back({{"key", key}, {"value", value}});
  };
  tag("takt_job_id", job.id);
  tag("mlflow.source.name", "takt");
  if (!job.owner.empty()) tag("mlflow.user", job.owner);
  ASSIGN_OR_RETURN(const json created,
                   Call("runs/create", {{"experiment_id", experiment_id},
                                        {"run_name", job.name},
                                        {"start_time", absl::ToUnixMillis(job.start)},
                                        {"tags", tags}}));
  const std::string run = TextOf(PartOf(PartOf(created, "run"), "info"), "run_id");
  if (run.empty()) return absl::UnavailableError("MLflow made a run without a run_id");
  json parameters = json::array();
  for (const auto& [key, value] : job.parameters)
    parameters.push_back({{"key", key}, {"value", value}});
  RETURN_IF_ERROR(Call("runs/log-batch", {{"run_id", run}, {"params", parameters}}).status());
  return run;
}

absl::StatusOr<TrackedRun> MlflowTracker::Open(const TrackedJob& job) {
  ASSIGN_OR_RETURN(const std::string experiment, FindExperiment(job.experiment));
  ASSIGN_OR_RETURN(
      const json found,
      Call("runs/search", {{"experiment_ids", json::array({experiment})},
                           {"filter", absl::StrCat("tags.takt_job_id = '", job.id, "'")},
                           {"max_results", 1}}));
  for (const json& run : PartOf(found, "runs")) {
    std::int64_t last = 0;  // the run has the newest value of each metric
    for (const json& metric : PartOf(PartOf(run, "data"), "metrics"))
      last = std::max(last, NumberOf(metric, "step"));
    return TrackedRun{.id = TextOf(PartOf(run, "info"), "run_id"), .last = StepId(last)};
  }
  ASSIGN_OR_RETURN(std::string created, CreateRun(job, experiment));
  return TrackedRun{.id = std::move(created), .last = StepId(0)};
}

absl::Status MlflowTracker::Append(const std::string& run_id,
                                   const std::vector<store::StepRecord>& steps) {
  json metrics = json::array();
  for (const store::StepRecord& step : steps) AddMetrics(step, metrics);
  return Call("runs/log-batch", {{"run_id", run_id}, {"metrics", metrics}}).status();
}

absl::Status MlflowTracker::Close(const std::string& run_id, store::JobState state,
                                  absl::Time end) {
  return Call("runs/update", {{"run_id", run_id},
                              {"status", StatusOf(state)},
                              {"end_time", absl::ToUnixMillis(end)}})
      .status();
}

}  // namespace takt::tracking
