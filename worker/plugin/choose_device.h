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

// --device. kAuto: a GPU if there is one.
struct DeviceWish {
  enum class Kind : std::uint8_t { kAuto, kCpu, kCuda };
  Kind kind = Kind::kAuto;
  int index = 0;        // as the driver counts
  bool shared = false;  // with other workers; then the index counts round: 3 of two GPUs is 1
};

// "auto", "cpu", "cuda" or "cuda:N"; "auto:N" is cuda:N if there is a GPU. FieldError otherwise.
absl::StatusOr<DeviceWish> ParseDeviceWish(std::string_view text);

using LoadCudaEntry = std::function<absl::StatusOr<const CudaEntry*>()>;

struct ChosenDevice {
  std::optional<Device> device;  // nullopt: cores alone
  std::string why_not;           // of kAuto without a device: what is missing, for the log
};

// load: opens the module, or explains why there is none; called only if a GPU may be wanted. sysfs:
// "/sys".  Errors: for kCuda, the reason why there is none; kInvalidArgument (FieldError): no
// device of that index. A GPU that the module has no code for counts as none.
absl::StatusOr<ChosenDevice> ChooseDevice(const DeviceWish& wish, const LoadCudaEntry& load,
                                          const std::string& sysfs);

// The NUMA node that a PCI device is on; nullopt if it is unknown.
std::optional<int> NumaNodeOf(const std::string& sysfs, std::string pci_bus_id);

}  // namespace takt::plugin
