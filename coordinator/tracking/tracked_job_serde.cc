// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tracking/tracked_job_serde.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "common/config/job_file.h"
#include "nlohmann/json.hpp"
#include "takt/v1/job_spec.pb.h"

namespace takt::tracking {
namespace {

// MLflow has these limits for one request, and its older versions for values.
constexpr std::size_t kMostParameters = 100;
constexpr std::size_t kLongestValue = 250;

// Returns the fields by dotted path, without those that say nothing about the model.
std::map<std::string, std::string> Parameters(v1::JobSpec spec) {
  spec.clear_logging();
  spec.mutable_parallelism()->clear_schedule_csv();
  std::map<std::string, std::string> parameters;
  const auto flat = nlohmann::json::parse(config::FormatJobFile(spec, -1)).flatten();
  for (const auto& item : flat.items()) {
    if (parameters.size() == kMostParameters) break;
    std::string field = item.key().substr(1);  // "/model/layers"
    std::replace(field.begin(), field.end(), '/', '.');
    std::string value =
        item.value().is_string() ? item.value().get<std::string>() : item.value().dump();
    if (value.size() <= kLongestValue) parameters.emplace(std::move(field), std::move(value));
  }
  return parameters;
}

}  // namespace

std::optional<TrackedJob> ToTrackedJob(const store::JobRecord& job) {
  v1::JobSpec spec;
  if (!spec.ParseFromString(job.spec) || spec.logging().mlflow().empty()) return std::nullopt;
  return TrackedJob{.id = job.id,
                    .name = job.name,
                    .owner = job.owner,
                    .experiment = spec.logging().mlflow(),
                    .start = job.create_time,
                    .parameters = Parameters(spec)};
}

}  // namespace takt::tracking
