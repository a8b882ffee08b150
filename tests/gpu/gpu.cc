// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/gpu.h"

#include "common/base/status.h"
#include "worker/plugin/loader.h"

namespace takt::gpu {

absl::StatusOr<std::unique_ptr<backend::cuda::CudaDevice>> OpenGpu(
    const backend::cuda::CudaOptions& options) {
  ASSIGN_OR_RETURN(const plugin::CudaEntry* const module,
                   plugin::LoadCuda(plugin::ModuleDirectory()));
  return module->open_device(options);
}

}  // namespace takt::gpu
