// SPDX-License-Identifier: Apache-2.0
// The transports under test, by name: "inproc", "shm", "gloo", "auto".
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/config/job_spec.h"
#include "worker/transport/transport.h"

namespace takt::conformance {

// Where the ranks of one test meet when they are threads of this process.
class TransportGroup {
 public:
  virtual ~TransportGroup() = default;
  virtual absl::StatusOr<std::unique_ptr<transport::Transport>> Connect(
      const transport::TransportOptions& options) = 0;
};

std::unique_ptr<TransportGroup> MakeGroup(const std::string& kind);

// For kinds whose ranks may be processes.
config::TransportKind KindOf(const std::string& kind);

// Options for rank `rank` of two on the loopback interface, with deadlines that a test can wait
// for.
transport::TransportOptions LoopbackOptions(int rank);

}  // namespace takt::conformance
