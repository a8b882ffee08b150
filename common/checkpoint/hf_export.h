// SPDX-License-Identifier: Apache-2.0
// Writes one step of a directory of checkpoints as a Hugging Face folder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/id.h"
#include "common/checkpoint/float_formats.h"

namespace takt::checkpoint {

struct ExportOptions {
  std::string step_directory;                    // the directory of a complete step
  std::string out;                               // the folder to make; it may exist if it is empty
  std::optional<FloatFormat> format;             // unset: the one that the run started from
  std::int64_t max_shard_bytes = 5'000'000'000;  // a larger tensor has a file of its own
};

struct Export {
  StepId step;
  FloatFormat format = FloatFormat::kF32;
  std::int64_t tensor_bytes = 0;
  std::vector<std::string> files;
};

// Verifies the checkpoint, and then writes config.json, generation_config.json and the weights.
// `out` appears whole or not at all, since everything is written and synced beside it first. The
// export needs a megabyte of memory for a model of any size. Errors: kAlreadyExists: `out` exists
// and is not empty; kDataLoss: the checkpoint is damaged; others come from the disk and name the
// file.
absl::StatusOr<Export> ExportHuggingFace(const ExportOptions& options);

}  // namespace takt::checkpoint
