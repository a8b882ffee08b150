// SPDX-License-Identifier: Apache-2.0
// Options of the commands that use a model: which one, and on how many cores.
#pragma once

#include <cstdint>
#include <string>

#include "CLI/App.hpp"
#include "absl/status/statusor.h"

namespace takt::cli {

struct ModelOptions {
  std::string checkpoint;
  std::int64_t step = 0;  // 0: not given
  int threads = 0;        // 0: one for each core
};

// Adds --step and --threads.
void AddModelOptions(CLI::App& app, ModelOptions& options);

// Returns the absolute path of the model's folder: the checkpoint itself if it is a Hugging Face
// folder, else the directory of a complete step in it. Errors: kNotFound (there is no such
// directory, or no step in it), kDataLoss (the step is damaged), kInvalidArgument (--step of a
// folder without steps).
absl::StatusOr<std::string> ModelFolder(const ModelOptions& options);

}  // namespace takt::cli
