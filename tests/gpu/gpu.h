// SPDX-License-Identifier: Apache-2.0
// The GPU of this machine, by the worker's own way to it: the module that it opens.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "worker/backend/cuda/cuda_backend.h"

namespace takt::gpu {

// The first GPU. Errors: why there is none: no module, no driver, no device.
absl::StatusOr<std::unique_ptr<backend::cuda::CudaDevice>> OpenGpu(
    const backend::cuda::CudaOptions& options = {});

// A test that cannot run says why. device: of OpenGpu.
#define TAKT_SKIP_WITHOUT(device) \
  if (!(device).ok()) GTEST_SKIP() << "no GPU: " << (device).status().message()

}  // namespace takt::gpu
