// SPDX-License-Identifier: Apache-2.0
#include "common/config/logging_field.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

#include "absl/strings/ascii.h"
#include "takt/v1/job_spec.pb.h"

namespace takt::config {
namespace {

// Returns whether the name needs no quotes in the queries of a server.
bool IsExperiment(const std::string& name) {
  constexpr std::size_t kLongest = 200;
  return !name.empty() && name.size() <= kLongest && std::ranges::all_of(name, [](char c) {
    return absl::ascii_isalnum(c) || std::string_view("-_./ ").find(c) != std::string_view::npos;
  });
}

}  // namespace

void ReadLogging(const v1::LoggingSpec& proto, JobSpec& job, SpecRules& rules) {
  if (proto.has_tensorboard()) {
    job.tensorboard = proto.tensorboard();
    rules.Path("logging.tensorboard", job.tensorboard, "name a folder, or null for none");
  }
  if (!proto.has_mlflow()) return;
  job.mlflow = proto.mlflow();
  rules.Check(IsExperiment(job.mlflow),
              {.field = "logging.mlflow",
               .value = Shown(job.mlflow),
               .rule = "must be 1 to 200 letters, digits, blanks, '-', '_', '.' and '/'",
               .fix = "name an experiment, or null for none"});
}

}  // namespace takt::config
