// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cuda/device.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/backend/cuda/attention.h"
#include "worker/backend/cuda/driver.h"

namespace takt::backend::cuda {
namespace {

// Formats as nvidia-smi does: GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx.
std::string UuidText(const cudaUUID_t& uuid) {
  std::string text = "GPU";
  for (int i = 0; i < 16; ++i) {
    const bool group = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
    absl::StrAppend(&text, group ? "-" : "",
                    absl::Hex(static_cast<unsigned char>(uuid.bytes[i]), absl::kZeroPad2));
  }
  return text;
}

absl::StatusOr<Device> Describe(int index, const std::string& driver_version) {
  cudaDeviceProp properties;
  RETURN_IF_ERROR(ToStatus(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties"));
  std::array<char, 32> pci_bus_id{};
  RETURN_IF_ERROR(ToStatus(cudaDeviceGetPCIBusId(pci_bus_id.data(), pci_bus_id.size(), index),
                           "cudaDeviceGetPCIBusId"));
  return Device{.index = index,
                .name = properties.name,
                .uuid = UuidText(properties.uuid),
                .memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem),
                .compute_capability = absl::StrCat(properties.major, ".", properties.minor),
                .driver_version = driver_version,
                .pci_bus_id = pci_bus_id.data(),
                .cudnn = CudnnVersion()};
}

}  // namespace

absl::Status ToStatus(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  // Clears the error, so that cudaGetLastError after the next launch does not report it again. An
  // error that stays (a poisoned device) comes back by itself.
  static_cast<void>(cudaGetLastError());
  const std::string text = absl::StrCat(std::string(what), ": ", cudaGetErrorString(error), " (",
                                        cudaGetErrorName(error), ")");
  switch (error) {
    case cudaErrorMemoryAllocation:
      return absl::ResourceExhaustedError(text);
    case cudaErrorNoDevice:
      return absl::UnavailableError(absl::StrCat(
          text, ": nvidia-smi, CUDA_VISIBLE_DEVICES and the container's devices say why"));
    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureInvalidated:
    case cudaErrorStreamCaptureImplicit:
      return absl::FailedPreconditionError(text);
    default:
      return absl::InternalError(text);
  }
}

absl::StatusOr<std::vector<Device>> ListDevices() {
  int driver = 0, runtime = 0, num_devices = 0;
  RETURN_IF_ERROR(ToStatus(cudaDriverGetVersion(&driver), "cudaDriverGetVersion"));
  RETURN_IF_ERROR(ToStatus(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion"));
  RETURN_IF_ERROR(CheckDriver(driver, runtime));
  RETURN_IF_ERROR(ToStatus(cudaGetDeviceCount(&num_devices), "cudaGetDeviceCount"));
  std::vector<Device> devices;
  for (int index = 0; index < num_devices; ++index) {
    ASSIGN_OR_RETURN(Device device, Describe(index, VersionText(driver)));
    devices.push_back(std::move(device));
  }
  return devices;
}

}  // namespace takt::backend::cuda
