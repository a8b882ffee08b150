// SPDX-License-Identifier: Apache-2.0
// Messages and sums of device memory by NCCL, left on streams of the device; between ranks that
// cannot meet in NCCL, by another way.
//
// Each channel has a communicator of its two ranks, each group of sums one of its own: one waits
// for no other. Messages carry no tags: order and size are those of the verified program, and a
// communicator is of one generation, since its id travels over that generation's rendezvous.
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

// What a worker has of NCCL.
struct Library {
  const Api* api = nullptr;  // for ever; null: it has none
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

// Tells the other ranks what this one has, also where that is nothing.
// host: of numbers of the host. other: the other way; both of the same ranks.  rendezvous, host,
// backends: borrowed for the transport's life.
absl::StatusOr<std::unique_ptr<DeviceTransport>> CreateNcclTransport(
    NcclTransportOptions options, Rendezvous& rendezvous, Transport& host,
    std::unique_ptr<DeviceTransport> other, backend::BackendFactory& backends);

}  // namespace takt::transport::nccl
