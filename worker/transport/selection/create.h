// SPDX-License-Identifier: Apache-2.0
// Makes the transports of a worker: it chooses one for each peer.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/config/job_spec.h"
#include "worker/backend/backend.h"
#include "worker/transport/device_transport.h"
#include "worker/transport/transport.h"

namespace takt::transport {

namespace nccl {
struct Library;
}

// Makes the transport of host memory. kShm and kTcp take that one for all peers. All other kinds
// choose for each peer when its first channel is opened: shared memory if both prove by a handshake
// that they see the same memory, else TCP.
// All ranks of a group open their channels in one order (e.g. by sender, receiver, name), since
// each opening waits for its peer.  rendezvous: borrowed for the transport's life. Errors:
// kInvalidArgument (FieldError): a data_address that cannot be bound.
absl::StatusOr<std::unique_ptr<Transport>> CreateTransport(TransportOptions options,
                                                           config::TransportKind kind,
                                                           Rendezvous& rendezvous);

struct DeviceTransportOptions {
  TransportOptions transport;  // as of `host`
  config::TransportKind kind = config::TransportKind::kAuto;
  // Null, or without an api: messages of devices go through the host. Borrowed for the call.
  const nccl::Library* nccl = nullptr;
  // Is called when only a new process is clean: NCCL hangs while it is being aborted
  // (nccl/communicators.h), or a peer that hangs has this device's memory open (ipc/). May be
  // empty.
  std::function<void(const std::string& reason)> on_stuck;
};

// Makes the transport of device memory. Returns null if the memory of the backends is the host's,
// whose messages `host` takes. kAuto chooses NCCL between ranks that have it and GPUs of their own,
// else a way through the host. kCudaIpc copies between devices whose ranks are on one host and
// reach each other's memory, and does as kAuto for others, and for sums. kNccl takes NCCL or fails.
// kShm and kTcp go through the host. All ranks pass the same kind.  rendezvous, host, backends:
// borrowed for the transport's life.
absl::StatusOr<std::unique_ptr<DeviceTransport>> CreateDeviceTransport(
    DeviceTransportOptions options, Rendezvous& rendezvous, Transport& host,
    backend::BackendFactory& backends);

}  // namespace takt::transport
