// SPDX-License-Identifier: Apache-2.0
// The way in which ranks pass messages that lie in the memory of their devices.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/transport/collective.h"
#include "worker/transport/transport.h"

namespace takt::transport {

// A Transport of messages in device memory.
class DeviceTransport : public Transport {
 public:
  // Opens a group that sums floats in device memory, and doubles in host memory.
  // Blocks: until all ranks of the group do the same. Groups are created in one order on all ranks.
  virtual absl::StatusOr<std::unique_ptr<Collective>> OpenSums(const CollectiveOptions& group) = 0;
  // True: messages may be kernels that wait on the device for other ranks. A call that waits for
  // all kernels, such as making a CUDA graph, may then wait for ever.
  virtual bool waits_in_kernels() const { return false; }
  // Returns an error once it was aborted and only a new process is sure to be clean.
  virtual absl::Status poisoned() const { return absl::OkStatus(); }
};

}  // namespace takt::transport
