// SPDX-License-Identifier: Apache-2.0
// What the worker and its modules say to each other. A module is compiled with the worker, by the
// same compiler and against the same shared libraries: so plain C++ types cross, and `version` is
// the one field that may be read before it is known to be so.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/device.h"
#include "worker/backend/cuda/cuda_backend.h"
#include "worker/transport/nccl/api.h"

namespace takt::plugin {

// takt_cuda.so.
struct CudaEntry {
  const char* version;  // kTaktVersion of its build
  // In the driver's order. Errors: kUnavailable (no driver; no device), kFailedPrecondition (driver
  // too old), kInternal.
  absl::StatusOr<std::vector<Device>> (*list_devices)();
  absl::StatusOr<std::unique_ptr<backend::cuda::CudaDevice>> (*open_device)(
      const backend::cuda::CudaOptions& options);
};

// takt_nccl.so.
struct NcclEntry {
  const char* version;  // kTaktVersion of its build
  // Of the library that was found at run time, as it counts: 22809 is 2.28.9.
  absl::StatusOr<int> (*library_version)();
  const transport::nccl::Api* api;
};

// What a module exports. Never null.
inline constexpr char kCudaEntryName[] = "TaktCudaPlugin";
inline constexpr char kNcclEntryName[] = "TaktNcclPlugin";

}  // namespace takt::plugin
