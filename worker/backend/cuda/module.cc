// SPDX-License-Identifier: Apache-2.0
// takt_cuda.so: what the worker finds in it.
#include "common/base/version.h"
#include "worker/backend/cuda/cuda_backend.h"
#include "worker/backend/cuda/device.h"
#include "worker/plugin/entry.h"

namespace takt::backend::cuda {
namespace {

constexpr plugin::CudaEntry kEntry = {
    .version = kTaktVersion, .list_devices = ListDevices, .open_device = OpenDevice};

}  // namespace
}  // namespace takt::backend::cuda

extern "C" __attribute__((visibility("default"))) const takt::plugin::CudaEntry* TaktCudaPlugin() {
  return &takt::backend::cuda::kEntry;
}
