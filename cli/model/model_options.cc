// SPDX-License-Identifier: Apache-2.0
#include "cli/model/model_options.h"

#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/base/report.h"
#include "cli/checkpoint/steps.h"
#include "common/base/status.h"
#include "common/checkpoint/directory.h"
#include "common/checkpoint/layout.h"

namespace takt::cli {

void AddModelOptions(CLI::App& app, ModelOptions& options) {
  app.add_option("--step", options.step,
                 "Which step of a directory of checkpoints; default: the newest")
      ->type_name("STEP")
      ->check(CLI::PositiveNumber);
  app.add_option("--threads", options.threads, "Compute threads; default: one for each core")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
}

namespace {

// Returns the directory of the newest step that is whole, of those that were asked for.
absl::StatusOr<std::string> WholeStep(const Context& context, const ModelOptions& options,
                                      const CheckpointOptions& from) {
  ASSIGN_OR_RETURN(const std::vector<checkpoint::ListedStep> steps, FinishedSteps(from));
  std::vector<std::string> damage;
  for (const checkpoint::ListedStep& step : steps) {
    std::string folder = PathOf(from, step);
    const absl::Status status = checkpoint::VerifyModelFiles(folder);
    if (status.ok()) {
      for (const std::string& reason : damage)
        Say(context, absl::StrCat("warning: ", reason, "; ", step.name, " is used instead"));
      return folder;
    }
    if (!checkpoint::IsDamage(status)) return status;
    damage.emplace_back(status.message());
  }
  const char* const fix = options.step > 0
                              ? kDamagedStepFix
                              : "; no other checkpoint is there or whole, so restore the file";
  return absl::DataLossError(absl::StrCat(absl::StrJoin(damage, "; "), fix));
}

}  // namespace

absl::StatusOr<std::string> ModelFolder(const Context& context, const ModelOptions& options) {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::absolute(options.checkpoint, error);
  if (error || !std::filesystem::is_directory(path, error)) {
    return absl::NotFoundError(
        absl::StrCat(options.checkpoint,
                     ": there is no such directory; give a directory of checkpoints, or a Hugging "
                     "Face folder"));
  }
  const bool is_step = std::filesystem::exists(path / checkpoint::kManifestFile, error);
  if (!is_step && !std::filesystem::exists(path / checkpoint::kConfigFile, error))
    return WholeStep(context, options, {.directory = path.string(), .step = options.step});
  if (options.step > 0) {
    return InvalidField({.field = "--step",
                         .value = absl::StrCat(options.step),
                         .rule = absl::StrCat("has no meaning: ", options.checkpoint,
                                              " is the folder of one model"),
                         .fix = "leave it out"});
  }
  const absl::Status whole =
      is_step ? checkpoint::VerifyModelFiles(path.string()) : absl::OkStatus();
  if (whole.ok()) return path.string();
  if (!checkpoint::IsDamage(whole)) return whole;
  return absl::DataLossError(
      absl::StrCat(whole.message(),
                   "; give the directory of its checkpoints, to use the newest whole one, or "
                   "restore the file"));
}

}  // namespace takt::cli
