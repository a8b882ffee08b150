// SPDX-License-Identifier: Apache-2.0
// Verified loading of a complete step into memory.
#pragma once

#include <span>
#include <string>

#include "absl/status/status.h"
#include "common/checkpoint/directory.h"
#include "worker/backend/memory_backend.h"
#include "worker/checkpoint/layer_state.h"

namespace takt::checkpoint {

struct LoadOptions {
  int num_layers = 0;                        // of the model
  int threads = 1;                           // each reads a file at a time
  backend::MemoryBackend* device = nullptr;  // whose memory the targets are; null: the host's
};

// Fills every target. Whole files are read, hashed while they are copied, so that what is loaded is
// what was verified. On error the targets hold rubbish.
// Errors: kDataLoss (hash, size or file missing), kInvalidArgument (a tensor is missing or has
// another dtype or shape: names both), others as the disk says; each names the file.
absl::Status LoadLayers(const StepFiles& step, std::span<const LayerTarget> targets,
                        const LoadOptions& options);

// Hashes those of the step's files that are named, on so many threads. Errors: as
// StepFiles::Verify.
absl::Status VerifyFiles(const StepFiles& step, std::span<const std::string> names, int threads);

}  // namespace takt::checkpoint
