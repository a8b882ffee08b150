// SPDX-License-Identifier: Apache-2.0
// A module with one device and no kernels, for the loader's test. TAKT_FAKE_VERSION is the version
// that it claims. TAKT_FAKE_NEEDS makes it need a function of a library that is removed after
// linking.
#include "absl/status/status.h"
#include "worker/plugin/entry.h"

#ifdef TAKT_FAKE_NEEDS
extern "C" int TaktFakeLibrary();
#else
static int TaktFakeLibrary() { return 0; }
#endif

namespace takt::plugin {
namespace {

absl::StatusOr<std::vector<Device>> ListDevices() {
  return std::vector<Device>{{.index = TaktFakeLibrary(), .name = "Fake", .uuid = "GPU-fake"}};
}

absl::StatusOr<std::unique_ptr<backend::cuda::CudaDevice>> OpenDevice(
    const backend::cuda::CudaOptions&) {
  return absl::UnavailableError("computes nothing");
}

constexpr CudaEntry kEntry = {
    .version = TAKT_FAKE_VERSION, .list_devices = ListDevices, .open_device = OpenDevice};

}  // namespace
}  // namespace takt::plugin

extern "C" const takt::plugin::CudaEntry* TaktCudaPlugin() { return &takt::plugin::kEntry; }
