// SPDX-License-Identifier: Apache-2.0
// Sums device memory over a group, with the bits of sums that go through the host
// (transport/channel_collective.h). NCCL's own reductions add in another order, so NCCL only moves
// the values.
//
// A sum takes rounds: rank r receives slice r of every rank, adds them in rank order and sends the
// sum to every rank. Each half of a round is one group of sends and receives, and the sums are ops
// on the same stream.
//   bytes a rank sends: 2 * (n - 1) / n * size, as in a ring;  memory: kSumScratchBytes.
// A sum of which each rank gets a part takes only the first half of each such round, in rank order
// or along the tree. Bytes that pass unchanged are one group of sends and receives.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/backend/memory_backend.h"
#include "worker/transport/collective.h"
#include "worker/transport/nccl/communicators.h"

namespace takt::transport::nccl {

// Memory for the slices of the other ranks.
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
