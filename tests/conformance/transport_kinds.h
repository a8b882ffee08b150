// SPDX-License-Identifier: Apache-2.0
// The transports under test, by name: "inproc", "shm", "tcp", "gloo", "auto"; "sparse" is gloo with
// options.sparse_meeting. "nccl", with the library faked, and "ipc", over "auto", are between
// simulated devices, behind ends that take memory of the host and wait (device_ends.h).
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
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
std::unique_ptr<TransportGroup> MakeNcclGroup();

// Makes the transport of one rank, for kinds whose ranks may be processes.
absl::StatusOr<std::unique_ptr<transport::Transport>> MakeTransport(
    const std::string& kind, const transport::TransportOptions& options,
    transport::Rendezvous& rendezvous);

// Makes that of "ipc".
absl::StatusOr<std::unique_ptr<transport::Transport>> MakeIpcTransport(
    const transport::TransportOptions& options, transport::Rendezvous& rendezvous);

// Options for rank `rank` of two on the loopback interface, with deadlines that a test can wait
// for.
transport::TransportOptions LoopbackOptions(int rank);

}  // namespace takt::conformance
