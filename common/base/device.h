// SPDX-License-Identifier: Apache-2.0
// The accelerator that a worker computes on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/base/matmul_rates.h"

namespace takt {

// The values of takt.v1.Device.
struct Device {
  int index = 0;     // on its host, as the driver counts those that the worker sees
  std::string name;  // "NVIDIA H200"
  std::string uuid;  // "GPU-8c6b...": the same for everybody who sees the device
  std::int64_t memory_bytes = 0;
  std::string compute_capability;  // "9.0"
  std::string driver_version;      // the newest CUDA that the driver speaks: "13.0"
  std::string pci_bus_id;          // "0000:17:00.0"
  std::optional<int> numa_node;    // nullopt: the machine has one node, or does not tell
  // The version of cuDNN that computes attention: "9.13.0". Empty: slower kernels of ours do.
  std::string cudnn;
  MatmulRates matmul_rates;
  bool shared = false;  // other workers that say so, too, may compute on it
  bool operator==(const Device&) const = default;
};

}  // namespace takt
