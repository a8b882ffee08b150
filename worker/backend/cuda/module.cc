// SPDX-License-Identifier: Apache-2.0
// Exports the entry of takt_cuda.so.
#include "common/base/version.h"
#include "worker/backend/cuda/device.h"
#include "worker/backend/cuda/module_entry.h"

namespace takt::backend::cuda {
namespace {

constexpr ModuleEntry kEntry = {
    .version = kTaktVersion, .list_devices = ListDevices, .open_device = OpenDevice};

}  // namespace
}  // namespace takt::backend::cuda

extern "C" __attribute__((visibility("default"))) const takt::backend::cuda::ModuleEntry*
TaktCudaPlugin() {
  return &takt::backend::cuda::kEntry;
}
