// SPDX-License-Identifier: Apache-2.0
// Messages and sums of device memory by NCCL, which are left on streams of the device. Ranks that
// cannot meet in NCCL use another transport.
//
// Each channel and each group of sums has a communicator of its own, so none waits for another.
// Messages carry no tags: the verified program fixes their order and sizes, and a communicator
// belongs to one generation, since its id travels over that generation's rendezvous.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/backend/backend.h"
#include "worker/transport/device_transport.h"
#include "worker/transport/nccl/api.h"
#include "worker/transport/nccl/device_sums.h"
#include "worker/transport/nccl/presence.h"
#include "worker/transport/transport.h"

namespace takt::transport::nccl {

// The NCCL library of a worker.
struct Library {
  const Api* api = nullptr;  // valid for ever; null: the worker has no NCCL
  int device_index = 0;      // as the driver counts
  Presence presence;
};

struct NcclTransportOptions {
  TransportOptions transport;
  Library library;
  // Refuses what NCCL cannot carry, instead of going another way.
  bool required = false;
  std::size_t sum_scratch_bytes = kSumScratchBytes;  // of each group; the same on all ranks
  // As CommunicatorsOptions::on_aborted.
  std::function<void(const absl::Status& reason, bool stuck)> on_aborted;
};

// Publishes which NCCL this rank has, or that it has none. host: carries host memory. other:
// carries device memory between ranks that cannot meet in NCCL. Both connect the same ranks.
// rendezvous, host, backends: borrowed for the transport's life.
absl::StatusOr<std::unique_ptr<DeviceTransport>> CreateNcclTransport(
    NcclTransportOptions options, Rendezvous& rendezvous, Transport& host,
    std::unique_ptr<DeviceTransport> other, backend::BackendFactory& backends);

}  // namespace takt::transport::nccl
