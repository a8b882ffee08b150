// SPDX-License-Identifier: Apache-2.0
// `takt eval CHECKPOINT`: the model runs on this machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "cli/base/context.h"
#include "cli/model/model_options.h"
#include "cli/model/score.h"
#include "common/config/job_spec.h"

namespace takt::cli {

struct EvaluateOptions {
  ModelOptions model;
  std::string data;  // file, directory or pattern
  std::optional<config::DataFormat> format;
  int context = 0;               // 0: not given
  std::int64_t max_windows = 0;  // 0: all
  // Whether tokens see other documents, and the token that ends them; what is not given is as the
  // job has it that trained the checkpoint.
  std::optional<config::Documents> documents;
  std::optional<int> document_end;
};

// Runs the model in a takt-worker, and shows on a terminal how far it is.
// Errors: those of ModelFolder, ModelChild and the work, with a FieldError for wrong input.
absl::StatusOr<Score> EvaluateHere(const Context& context, const EvaluateOptions& options);

}  // namespace takt::cli
