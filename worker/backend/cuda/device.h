// SPDX-License-Identifier: Apache-2.0
// Lists the GPUs that this process sees, and turns CUDA's errors into statuses.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/device.h"

namespace takt::backend::cuda {

// `what` names the call. kResourceExhausted (out of memory), kUnavailable (no device is visible),
// kFailedPrecondition (a stream that captures cannot do this), kInternal (the device is poisoned or
// gone: the process must end).
absl::Status ToStatus(cudaError_t error, std::string_view what);

// Lists them in the driver's order. Errors: those of CheckDriver, else of ToStatus.
absl::StatusOr<std::vector<Device>> ListDevices();

}  // namespace takt::backend::cuda
