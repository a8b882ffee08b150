// SPDX-License-Identifier: Apache-2.0
// The GPUs that this process sees, and their errors as statuses.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/device.h"

namespace takt::backend::cuda {

// `what` names the call. kResourceExhausted (out of memory), kUnavailable (no device is visible),
// kFailedPrecondition (what a stream that captures cannot do), kInternal (the device is poisoned or
// gone: the process must end).
absl::Status ToStatus(cudaError_t error, std::string_view what);

// In the driver's order. Errors: those of CheckDriver, else of ToStatus.
absl::StatusOr<std::vector<Device>> ListDevices();

}  // namespace takt::backend::cuda
