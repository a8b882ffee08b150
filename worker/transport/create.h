// SPDX-License-Identifier: Apache-2.0
// The one way by which a worker gets its transports.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "common/config/job_spec.h"
#include "worker/backend/backend.h"
#include "worker/transport/device_transport.h"
#include "worker/transport/nccl/nccl_transport.h"
#include "worker/transport/transport.h"

namespace takt::transport {

// kShm, kGloo: that one for all peers.  kAuto: for each peer, when its first channel is opened,
// shared memory if both prove by a handshake that they see the same memory, else Gloo. All channels
// of a group of ranks are opened in one order that all ranks agree on (e.g. by sender, receiver,
// name), since each opening waits for its peer. rendezvous: borrowed for the transport's life.
// kNccl: as kAuto, of what is not on a device.
// Errors: kInvalidArgument (FieldError): a data_address that cannot be bound.
absl::StatusOr<std::unique_ptr<Transport>> CreateTransport(TransportOptions options,
                                                           config::TransportKind kind,
                                                           Rendezvous& rendezvous);

struct DeviceTransportOptions {
  TransportOptions transport;  // as of `host`
  config::TransportKind kind = config::TransportKind::kAuto;
  nccl::Library nccl;
  // NCCL was aborted, or is stuck in that (nccl/communicators.h): this process is of no more use to
  // it. May be empty.
  std::function<void(const absl::Status& reason, bool stuck)> on_nccl_aborted;
};

// Between the devices of ranks; null if their memory is the host's, which `host` takes.  kAuto:
// NCCL between ranks that have it and GPUs of their own, else through the host. kNccl: NCCL, or an
// error. kShm, kGloo: through the host. All ranks say the same kind.  rendezvous, host, backends:
// borrowed for the transport's life.
absl::StatusOr<std::unique_ptr<DeviceTransport>> CreateDeviceTransport(
    DeviceTransportOptions options, Rendezvous& rendezvous, Transport& host,
    backend::BackendFactory& backends);

}  // namespace takt::transport
