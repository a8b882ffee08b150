// SPDX-License-Identifier: Apache-2.0
// Options of all `takt checkpoint` commands: a directory of checkpoints, and perhaps a step in it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "CLI/App.hpp"
#include "absl/status/statusor.h"
#include "common/checkpoint/directory.h"

namespace takt::cli {

struct CheckpointOptions {
  std::string directory;
  std::int64_t step = 0;  // 0: not given
};

void AddDirectory(CLI::App& app, CheckpointOptions& options);
void AddStep(CLI::App& app, CheckpointOptions& options, const char* otherwise);

// Errors end with this fix if the user named the step that is damaged.
inline constexpr char kDamagedStepFix[] =
    "; restore the file, or name another step with --step (takt checkpoint list shows them)";

// Lists the steps in the directory, as checkpoint::ListSteps. kNotFound: there is no directory;
// kInvalidArgument (FieldError on DIR): it is a file, a checkpoint or the folder of a model.
absl::StatusOr<std::vector<checkpoint::ListedStep>> AllSteps(const CheckpointOptions& options);

// Lists the steps whose directories are named as finished ones, complete or damaged, newest first.
// With --step it lists only that one. kNotFound: there is no directory, no such step, or no step at
// all. Other errors are those of AllSteps.
absl::StatusOr<std::vector<checkpoint::ListedStep>> FinishedSteps(const CheckpointOptions& options);

// Returns the path of the directory of a step.
std::string PathOf(const CheckpointOptions& options, const checkpoint::ListedStep& step);

}  // namespace takt::cli
