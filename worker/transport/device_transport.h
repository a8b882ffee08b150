// SPDX-License-Identifier: Apache-2.0
// How ranks pass what lies in the memory of their devices.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/transport/collective.h"
#include "worker/transport/transport.h"

namespace takt::transport {

// As Transport, of messages in device memory.
class DeviceTransport : public Transport {
 public:
  // A group whose sums of floats are of device memory; those of doubles are the host's.
  // Blocks: until all ranks of the group do the same. Groups are created in one order on all ranks.
  virtual absl::StatusOr<std::unique_ptr<Collective>> OpenSums(const CollectiveOptions& group) = 0;
  // Not OK, once it was aborted: only a new process is sure to be clean, and why.
  virtual absl::Status poisoned() const { return absl::OkStatus(); }
};

}  // namespace takt::transport
