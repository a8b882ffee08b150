// SPDX-License-Identifier: Apache-2.0
// Makes the backends that a job's lanes compute on.
#pragma once

#include <cstdint>
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

// Returns how many multiprocessors products leave to kernels of NCCL: what a rank's four channels,
// and the one group that sums beside them, take at most. Channels by CUDA IPC take none. 0: nothing
// goes through NCCL.
int SmsForCommunication(const control::Assignment& assignment);

// Returns about how much memory of a GPU libraries take beside what the plan predicts: handles,
// recordings (CUDA graphs), and NCCL's channels and groups.
std::int64_t BytesOfLibraries(const control::Assignment& assignment);

// Returns backends of the GPU if the job's ranks compute on GPUs, and reserves its memory as
// predicted. Otherwise, and for emulated models, returns backends of the cores with so many
// threads. Errors: kFailedPrecondition (no GPU here), those of the module.
absl::StatusOr<std::unique_ptr<backend::BackendFactory>> CreateComputeBackends(
    const ComputeOptions& options, const control::Assignment& assignment, int threads);

}  // namespace takt
