// SPDX-License-Identifier: Apache-2.0
// A rank's programs on the meta backend: what they allocate and how much they compute, without
// memory, files or other ranks. For what is predicted, and for jobs too large for this machine.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "worker/backend/meta/meta_backend.h"
#include "worker/train/trainer.h"

namespace takt::train {

struct MetaReport {
  backend::MetaCounts counts;  // after a step and one of validation
  std::vector<double> flops;   // of each instruction of the body
};

// options: as of a trainer; those that are about other ranks, files and threads do not matter.
// listener: of every op, in order; may be empty.
absl::StatusOr<MetaReport> RunOnMeta(TrainerOptions options,
                                     backend::OpListener listener = nullptr);

}  // namespace takt::train
