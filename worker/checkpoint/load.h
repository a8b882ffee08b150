// SPDX-License-Identifier: Apache-2.0
// Loads a complete step into memory and verifies it.
#pragma once

#include <span>
#include <string>

#include "absl/status/status.h"
#include "common/checkpoint/directory.h"
#include "worker/backend/memory_backend.h"
#include "worker/checkpoint/layer_state.h"

namespace takt::worker_checkpoint {

struct LoadOptions {
  int num_layers = 0;                        // of the whole model
  int threads = 1;                           // each reads one file at a time
  backend::MemoryBackend* device = nullptr;  // null: the targets are in host memory
};

// Fills every target. It reads whole files and hashes them while it copies, so what it loads is
// what it verified. After an error the contents of the targets are undefined.
// Errors: kDataLoss (wrong hash or size, or a file is missing), kInvalidArgument (a tensor is
// missing, or has another dtype or shape; the message names both), others from the disk. Each names
// the file.
absl::Status LoadLayers(const checkpoint::StepFiles& step, std::span<const LayerTarget> targets,
                        const LoadOptions& options);

// Verifies the named files of the step, on `threads` threads. Errors: as StepFiles::Verify.
absl::Status VerifyFiles(const checkpoint::StepFiles& step, std::span<const std::string> names,
                         int threads);

}  // namespace takt::worker_checkpoint
