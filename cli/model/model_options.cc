// SPDX-License-Identifier: Apache-2.0
#include "cli/model/model_options.h"

#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/checkpoint/steps.h"
#include "common/base/status.h"

namespace takt::cli {

void AddModelOptions(CLI::App& app, ModelOptions& options) {
  app.add_option("--step", options.step,
                 "Which step of a directory of checkpoints; default: the newest")
      ->type_name("N")
      ->check(CLI::PositiveNumber);
  app.add_option("--threads", options.threads, "Compute threads; default: one for each core")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
}

absl::StatusOr<std::string> ModelFolder(const ModelOptions& options) {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::absolute(options.checkpoint, error);
  if (error || !std::filesystem::is_directory(path, error)) {
    return absl::NotFoundError(
        absl::StrCat(options.checkpoint,
                     ": there is no such directory; give a directory of checkpoints, or a Hugging "
                     "Face folder"));
  }
  if (std::filesystem::exists(path / "config.json", error)) {
    if (options.step == 0) return path.string();
    return InvalidField({.field = "--step",
                         .value = absl::StrCat(options.step),
                         .rule = absl::StrCat("has no meaning: ", options.checkpoint,
                                              " is the folder of one model"),
                         .fix = "leave it out"});
  }
  const CheckpointOptions from{.directory = path.string(), .step = options.step};
  ASSIGN_OR_RETURN(const std::vector<checkpoint::ListedStep> steps, FinishedSteps(from));
  const checkpoint::ListedStep& step = steps.front();
  if (!step.manifest.has_value()) {
    return absl::DataLossError(
        absl::StrCat(step.reason, "; name another step with --step (takt checkpoint list ",
                     options.checkpoint, " shows them)"));
  }
  return PathOf(from, step);
}

}  // namespace takt::cli
