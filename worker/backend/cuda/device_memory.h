// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/memory_kind.h"
#include "worker/backend/cuda/arena.h"
#include "worker/backend/memory_backend.h"
#include "worker/backend/memory_ledger.h"

namespace takt::backend::cuda {

// The memory of one device: regions for the arena, and pieces of the driver's pool in the order of
// a stream. Thread-safe.
class DeviceMemory final : public MemorySource {
 public:
  // ledger: counts the pieces of the pool; borrowed, outlives their buffers; null: nothing does.
  DeviceMemory(int device, MemoryLedger* ledger) : device_(device), ledger_(ledger) {}

  absl::StatusOr<std::byte*> Reserve(std::int64_t bytes) override;
  void Release(std::byte* base) override;
  std::int64_t FreeBytes() override;

  // Lets the pool keep what it took of the device. Otherwise it gives that back whenever a thread
  // waits, and takes it again in the next step.  Errors: kInternal.
  absl::Status KeepPool();
  // As Backend::AllocateInOrder, for the work of `stream`, which outlives the buffer.
  absl::StatusOr<Buffer> AllocateInOrder(std::size_t bytes, MemoryKind kind, cudaStream_t stream);

 private:
  const int device_;
  MemoryLedger* const ledger_;
};

}  // namespace takt::backend::cuda
