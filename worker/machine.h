// SPDX-License-Identifier: Apache-2.0
// What this machine offers to jobs.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/device.h"
#include "worker/transport/nccl/nccl_transport.h"

namespace takt::worker {

struct Machine {
  std::string host;
  std::string processor;         // its name
  int cores = 1;                 // that this process may use
  std::optional<Device> device;  // the GPU of this worker
  transport::nccl::Library nccl;
};

// Finds the GPU that `device` names (plugin::ParseDeviceWish) and NCCL for it, and logs what there
// is or why there is none. It sets environment variables that the driver and the libraries read, so
// call it before any thread starts to use them.  Errors: those of ChooseDevice.
absl::StatusOr<Machine> InspectMachine(const std::string& device, bool share_device);

// Measures the matmul rates of so many cores. If that fails they are 0, and the planner assumes a
// rate.
MatmulRates MeasureCores(int threads);

}  // namespace takt::worker
