// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cuda/driver.h"

#include "absl/strings/str_cat.h"

namespace takt::backend::cuda {
namespace {

constexpr int kMajor = 1000, kMinor = 10;  // 12040 is 12.4

}  // namespace

std::string VersionText(int version) {
  return absl::StrCat(version / kMajor, ".", version % kMajor / kMinor);
}

absl::Status CheckDriver(int driver, int runtime) {
  if (driver == 0) {
    return absl::UnavailableError(absl::StrCat(
        "no NVIDIA driver: libcuda.so.1 is not there, or this process may not open /dev/nvidia*. "
        "Install one that speaks CUDA ",
        VersionText(runtime), " and open the devices to the worker (docs/deploy.md)"));
  }
  if (driver / kMajor < runtime / kMajor) {
    return absl::FailedPreconditionError(
        absl::StrCat("the NVIDIA driver is too old: it speaks CUDA ", VersionText(driver),
                     ", this worker needs ", VersionText(runtime), ": install a newer driver"));
  }
  return absl::OkStatus();
}

}  // namespace takt::backend::cuda
