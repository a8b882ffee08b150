// SPDX-License-Identifier: Apache-2.0
// What the modules of a worker export.
#pragma once

#include "worker/backend/cuda/module_entry.h"
#include "worker/transport/nccl/module_entry.h"

namespace takt::plugin {

using CudaEntry = backend::cuda::ModuleEntry;
using NcclEntry = transport::nccl::ModuleEntry;

}  // namespace takt::plugin
