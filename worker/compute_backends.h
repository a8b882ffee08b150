// SPDX-License-Identifier: Apache-2.0
// Makes the backends that a job's lanes compute on.
#pragma once

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "common/base/device.h"
#include "common/control/assignment.h"
#include "worker/backend/backend.h"
#include "worker/backend/fp8.h"
#include "worker/backend/memory_ledger.h"
#include "worker/session/rank_runner.h"

namespace takt {

struct ComputeOptions {
  std::optional<Device> device;                  // the GPU that this worker has
  backend::MemoryLedger* ledger = nullptr;       // borrowed, outlives the backends
  backend::Fp8Counters* fp8_counters = nullptr;  // likewise
};

// Returns backends of the GPU if the job's ranks compute on GPUs, and reserves its memory as
// predicted. Otherwise, and for emulated models, returns backends of the cores with so many
// threads. Errors: kFailedPrecondition (no GPU here), those of the module.
absl::StatusOr<std::unique_ptr<backend::BackendFactory>> CreateComputeBackends(
    const ComputeOptions& options, const control::Assignment& assignment, int threads);

}  // namespace takt
