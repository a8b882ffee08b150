// SPDX-License-Identifier: Apache-2.0
#include "common/config/logging_fields.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "takt/v1/job_spec.pb.h"

namespace takt::config {
namespace {

// So names need no quoting in the queries of a server.
bool IsExperiment(const std::string& name) {
  constexpr std::size_t kLongest = 200;
  return !name.empty() && name.size() <= kLongest &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(c) || absl::string_view("-_./ ").find(c) != std::string::npos;
         });
}

}  // namespace

void ReadLogging(const v1::LoggingSpec& proto, JobSpec& job, FieldRules& rules) {
  const auto shown = [](const std::string& text) {
    return absl::Utf8SafeCHexEscape(text.substr(0, 100));
  };
  if (proto.has_tensorboard()) {
    job.tensorboard = proto.tensorboard();
    rules.Check(!job.tensorboard.empty(), {.field = "logging.tensorboard",
                                           .rule = "is missing",
                                           .fix = "name a folder, or null for none"});
    rules.Check(job.tensorboard.find('\0') == std::string::npos, {.field = "logging.tensorboard",
                                                                  .value = shown(job.tensorboard),
                                                                  .rule = "must be a path",
                                                                  .fix = "correct it"});
  }
  if (!proto.has_mlflow()) return;
  job.mlflow = proto.mlflow();
  rules.Check(IsExperiment(job.mlflow),
              {.field = "logging.mlflow",
               .value = shown(job.mlflow),
               .rule = "must be 1 to 200 letters, digits, blanks, '-', '_', '.' and '/'",
               .fix = "name an experiment, or null for none"});
}

}  // namespace takt::config
