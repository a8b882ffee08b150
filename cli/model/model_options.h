// SPDX-License-Identifier: Apache-2.0
// Options of the commands that use a model: which one, and on how many cores.
#pragma once

#include <cstdint>
#include <string>

#include "CLI/App.hpp"
#include "absl/status/statusor.h"
#include "cli/base/context.h"

namespace takt::cli {

struct ModelOptions {
  std::string checkpoint;
  std::int64_t step = 0;  // 0: not given
  int threads = 0;        // 0: one for each core
};

// Adds --step and --threads.
void AddModelOptions(CLI::App& app, ModelOptions& options);

// Returns the absolute path of the model's folder: the checkpoint itself if it is a Hugging Face
// folder or the directory of a step, else the directory of the newest step in it that is whole. It
// compares the model's files with the hashes in the manifest, and says which newer steps it passes
// over. Errors: kNotFound (there is no such directory, or no step in it), kDataLoss (the step that
// was named, or every step, is damaged), kInvalidArgument (--step of a folder without steps); those
// of the disk, which may hide a whole step.
absl::StatusOr<std::string> ModelFolder(const Context& context, const ModelOptions& options);

}  // namespace takt::cli
