// SPDX-License-Identifier: Apache-2.0
// Chooses the accelerator of this worker from its settings and from what the machine has.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/base/device.h"
#include "worker/plugin/entry.h"

namespace takt::plugin {

// The value of --device. kAuto: a GPU if there is one.
struct DeviceWish {
  enum class Kind : std::uint8_t { kAuto, kCpu, kCuda };
  Kind kind = Kind::kAuto;
  int index = 0;        // as the driver counts GPUs
  bool shared = false;  // with other workers; the index then wraps around: 3 of two GPUs is 1
};

// Parses "auto", "cpu", "cuda" or "cuda:N". "auto:N" is cuda:N if there is a GPU. Returns a
// FieldError otherwise.
absl::StatusOr<DeviceWish> ParseDeviceWish(std::string_view text);

using LoadCudaEntry = std::function<absl::StatusOr<const CudaEntry*>()>;

struct ChosenDevice {
  std::optional<Device> device;  // nullopt: only the cores
  std::string why_not;           // for kAuto without a device: what is missing, for the log
};

// load: opens the module or explains why there is none. It is called only if a GPU may be wanted.
// sysfs: "/sys".
// Errors: for kCuda, the reason why there is no GPU; kInvalidArgument (FieldError): no device has
// that index. A GPU for which the module has no code counts as none.
absl::StatusOr<ChosenDevice> ChooseDevice(const DeviceWish& wish, const LoadCudaEntry& load,
                                          const std::string& sysfs);

// Returns the NUMA node of a PCI device, or nullopt if it is unknown.
std::optional<int> NumaNodeOf(const std::string& sysfs, std::string pci_bus_id);

}  // namespace takt::plugin
