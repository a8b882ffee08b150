// SPDX-License-Identifier: Apache-2.0
// Runs a rank's programs on the meta backend, which counts what they allocate and compute, without
// memory, files or other ranks. It serves predictions, also for jobs that are too large for this
// machine.
#pragma once

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/program/program.h"
#include "worker/backend/meta/meta_backend.h"
#include "worker/train/trainer.h"

namespace takt::train {

struct MetaReport {
  backend::MetaCounts counts;  // after a training step and a validation step
  std::vector<double> flops;   // of each instruction of the body
};

// options: as for a trainer. Those about other ranks, files and threads have no effect. listener:
// called for every op, in order; may be empty. on_instruction: called before each instruction of
// the body runs; may be empty.
absl::StatusOr<MetaReport> RunOnMeta(
    TrainerOptions options, backend::OpListener listener = nullptr,
    const std::function<void(const program::Instruction&)>& on_instruction = nullptr);

}  // namespace takt::train
