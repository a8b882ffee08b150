// SPDX-License-Identifier: Apache-2.0
#include "cli/checkpoint/steps.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/checkpoint/layout.h"

namespace takt::cli {

namespace fs = std::filesystem;
using checkpoint::ListedStep;
using checkpoint::StepState;

namespace {

// Says what a directory without checkpoints is, if it is one of them or another model.
absl::Status CheckNoModel(const std::string& directory) {
  FieldError error{.field = "DIR", .value = directory};
  std::error_code ignored;
  const fs::path real = fs::canonical(directory, ignored);  // `latest` is a link
  if (fs::exists(real / checkpoint::kManifestFile, ignored) ||
      checkpoint::ParseStepDirectoryName(real.filename().string()).has_value()) {
    error.rule = "is one checkpoint, not a directory of checkpoints";
    error.fix = absl::StrCat("name the directory that it is in: ", real.parent_path().string());
    return InvalidField(std::move(error));
  }
  if (fs::exists(real / checkpoint::kConfigFile, ignored)) {
    error.rule = "is the folder of one model, not a directory of checkpoints";
    error.fix = "name checkpoint.directory of a job; takt eval and takt generate take this folder";
    return InvalidField(std::move(error));
  }
  return absl::OkStatus();
}

}  // namespace

void AddDirectory(CLI::App& app, CheckpointOptions& options) {
  app.add_option("DIR", options.directory,
                 "Directory of checkpoints, as checkpoint.directory of the job")
      ->type_name("")
      ->required();
}

void AddStep(CLI::App& app, CheckpointOptions& options, const char* otherwise) {
  app.add_option("--step", options.step, absl::StrCat("Which step; default: ", otherwise))
      ->type_name("STEP")
      ->check(CLI::PositiveNumber);
}

absl::StatusOr<std::vector<ListedStep>> AllSteps(const CheckpointOptions& options) {
  constexpr char kFix[] = "name the directory of checkpoints, as checkpoint.directory of the job";
  std::error_code ignored;
  const fs::file_status found = fs::status(options.directory, ignored);
  if (fs::exists(found) && !fs::is_directory(found)) {
    return InvalidField(
        {.field = "DIR", .value = options.directory, .rule = "must be a directory", .fix = kFix});
  }
  absl::StatusOr<std::vector<ListedStep>> steps = checkpoint::ListSteps(options.directory);
  if (absl::IsNotFound(steps.status())) {
    return absl::NotFoundError(
        absl::StrCat(options.directory, ": there is no such directory; ", kFix));
  }
  if (steps.ok() && steps->empty()) RETURN_IF_ERROR(CheckNoModel(options.directory));
  return steps;
}

absl::StatusOr<std::vector<ListedStep>> FinishedSteps(const CheckpointOptions& options) {
  ASSIGN_OR_RETURN(std::vector<ListedStep> steps, AllSteps(options));
  std::erase_if(steps, [&](const ListedStep& step) {
    const bool finished = step.state == StepState::kComplete || step.state == StepState::kDamaged;
    return !finished || (options.step > 0 && step.step != StepId(options.step));
  });
  if (!steps.empty()) return steps;
  return absl::NotFoundError(options.step > 0
                                 ? absl::StrCat(options.directory, " has no checkpoint of step ",
                                                options.step, "; see: takt checkpoint list ",
                                                options.directory)
                                 : absl::StrCat(options.directory, " has no checkpoint"));
}

std::string PathOf(const CheckpointOptions& options, const ListedStep& step) {
  return absl::StrCat(options.directory, "/", step.name);
}

}  // namespace takt::cli
