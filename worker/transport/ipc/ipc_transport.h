// SPDX-License-Identifier: Apache-2.0
// Messages between the devices of one host, which the receiver's device copies from the sender's
// memory. Between GPUs copy engines do it, so no message takes a multiprocessor, and nothing on a
// device waits for another process.
//
//   sender                                     receiver
//   (the data is there)
//   the place of the data, by the host ------> gives the copy to its stream, and Recv returns
//   Send returns <----- by the host ---------- the copy is done
//
// The places and the answers are messages of the transport of host memory, so tags, deadlines,
// aborts and the generation's secret are those of that one. The sender's memory is opened when the
// channel is, once; see memory_lease.h for its end.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/backend/backend.h"
#include "worker/transport/device_transport.h"
#include "worker/transport/transport.h"

namespace takt::transport::ipc {

struct IpcTransportOptions {
  TransportOptions transport;
  // How long a sender that ends waits for a receiver to close its memory.
  // An abort of NCCL on the receiver's device, which this may have to wait for, takes up to 5 s.
  absl::Duration close_timeout = absl::Seconds(10);
  // Called when a receiver has not closed it and its process has not ended: the driver may only
  // give this memory back by the end of this process. May be empty.
  std::function<void(const std::string& reason)> on_stuck;
};

// Each pair of ranks tries it when a channel is opened: the receiver opens the sender's memory and
// copies a few bytes. Pairs of which it fails use `other`, and the log says why. Sums are those of
// `other`.  host: carries host memory. other: carries device memory. Both connect the same ranks.
// host, backends: borrowed for the transport's life.
std::unique_ptr<DeviceTransport> CreateIpcTransport(IpcTransportOptions options, Transport& host,
                                                    std::unique_ptr<DeviceTransport> other,
                                                    backend::BackendFactory& backends);

}  // namespace takt::transport::ipc
