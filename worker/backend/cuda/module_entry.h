// SPDX-License-Identifier: Apache-2.0
// The interface that takt_cuda.so exports. The module is compiled with the worker, by the same
// compiler and against the same shared libraries, so plain C++ types cross. Before it is known to
// be the worker's own, only `version` may be read.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/device.h"
#include "worker/backend/cuda/cuda_backend.h"

namespace takt::backend::cuda {

struct ModuleEntry {
  const char* version;  // kTaktVersion of its build
  // Lists the GPUs in the driver's order. Errors: kUnavailable (no driver; no device),
  // kFailedPrecondition (driver too old), kInternal.
  absl::StatusOr<std::vector<Device>> (*list_devices)();
  absl::StatusOr<std::unique_ptr<CudaDevice>> (*open_device)(const CudaOptions& options);
};

// The function of the module that returns its entry, never null.
inline constexpr char kModuleEntryName[] = "TaktCudaPlugin";

}  // namespace takt::backend::cuda
