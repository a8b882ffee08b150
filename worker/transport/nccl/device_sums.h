// SPDX-License-Identifier: Apache-2.0
// Sums of device memory over a group, with the bits of those that go through the host
// (transport/channel_collective.h): NCCL's own reductions add in an order of their own, so it only
// carries.
//
// In rounds: rank r gets everyone's slice r, adds them in rank order, hands the sum to everyone.
// Each half of a round is one group of sends and receives, and the sums are ops on the same stream.
//   bytes a rank sends: 2 * (n - 1) / n * size, as in a ring;  memory: kSumScratchBytes.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/backend/memory_backend.h"
#include "worker/transport/collective.h"
#include "worker/transport/nccl/communicators.h"

namespace takt::transport::nccl {

// For the slices of the others.
inline constexpr std::size_t kSumScratchBytes = std::size_t{16} << 20;

struct DeviceSumsOptions {
  Communicators* communicators = nullptr;  // borrowed, as all that follows
  const Api* api = nullptr;
  Communicator* communicator = nullptr;          // of the group, in its order; not yet used
  int index = 0;                                 // ours
  std::size_t scratch_bytes = kSumScratchBytes;  // the same on all ranks
  std::unique_ptr<Collective> host;              // the same group, on host memory
  std::unique_ptr<backend::MemoryBackend> backend;
};

// Blocks: until all ranks of the group do the same.
absl::StatusOr<std::unique_ptr<Collective>> CreateDeviceSums(DeviceSumsOptions options);

}  // namespace takt::transport::nccl
