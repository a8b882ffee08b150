// SPDX-License-Identifier: Apache-2.0
// What the worker of a rank needs of its machine, from the description of the model and the rank's
// program: exactly what worker/train allocates (held by worker/train/meta_run_test.cc), what a GPU
// backend takes beside at most, and a fixed part.
#pragma once

#include "common/base/memory_kind.h"
#include "common/config/job_spec.h"
#include "common/mesh/mesh.h"
#include "common/model/model.h"
#include "common/program/program.h"

namespace takt::plan {

struct MemoryInputs {
  const model::Model& model;
  const mesh::Partition& partition;
  const program::Program& program;
  const program::Program* validation = nullptr;  // null: the job has no validation set
  bool saves = false;                            // the job writes checkpoints
  int dp_size = 1;                               // who share the writing
  config::DeviceKind device = config::DeviceKind::kCpu;
};

// Resident bytes of the process at its peak, by kind.
MemoryBytes PredictMemory(const MemoryInputs& inputs);

}  // namespace takt::plan
