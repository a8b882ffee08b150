// SPDX-License-Identifier: Apache-2.0
// Lets transports of device memory pass the suite, whose messages lie in memory of the host.
#pragma once

#include <memory>

#include "worker/backend/backend.h"
#include "worker/transport/device_transport.h"
#include "worker/transport/transport.h"

namespace takt::conformance {

// A rank with a device.
class DeviceRank {
 public:
  virtual ~DeviceRank() = default;
  virtual backend::BackendFactory& device() = 0;
  virtual transport::DeviceTransport& transport() = 0;
};

// Makes a transport whose ends copy each message to or from the device and wait. It aborts the
// rank's when it ends.
std::unique_ptr<transport::Transport> WithDeviceEnds(std::unique_ptr<DeviceRank> rank);

}  // namespace takt::conformance
