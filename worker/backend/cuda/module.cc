// SPDX-License-Identifier: Apache-2.0
// takt_cuda.so: what the worker finds in it.
#include "absl/status/status.h"
#include "common/base/version.h"
#include "worker/backend/cuda/device.h"
#include "worker/plugin/entry.h"

namespace takt::backend::cuda {
namespace {

absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const plugin::CudaBackendOptions&) {
  return absl::UnavailableError("this version has no kernels for GPUs yet");
}

constexpr plugin::CudaEntry kEntry = {
    .version = kTaktVersion, .list_devices = ListDevices, .create_backend = CreateBackend};

}  // namespace
}  // namespace takt::backend::cuda

extern "C" __attribute__((visibility("default"))) const takt::plugin::CudaEntry* TaktCudaPlugin() {
  return &takt::backend::cuda::kEntry;
}
