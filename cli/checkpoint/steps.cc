// SPDX-License-Identifier: Apache-2.0
#include "cli/checkpoint/steps.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::cli {

using checkpoint::ListedStep;
using checkpoint::StepState;

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

absl::StatusOr<std::vector<ListedStep>> FinishedSteps(const CheckpointOptions& options) {
  ASSIGN_OR_RETURN(std::vector<ListedStep> steps, checkpoint::ListSteps(options.directory));
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
