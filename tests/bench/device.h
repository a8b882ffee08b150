// SPDX-License-Identifier: Apache-2.0
// What a benchmark computes on.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/memory_kind.h"
#include "worker/backend/backend.h"
#include "worker/backend/memory_ledger.h"

namespace takt::bench {

struct DeviceOptions {
  std::string device = "cpu";               // "cpu" or "cuda", the first GPU
  int threads = 1;                          // on the CPU
  MemoryBytes predicted;                    // on the GPU: what is reserved at once
  backend::MemoryLedger* ledger = nullptr;  // borrowed, outlives the factory; null: nobody counts
};

// Errors: why there is no GPU (worker/plugin).
absl::StatusOr<std::unique_ptr<backend::BackendFactory>> OpenDevice(const DeviceOptions& options);

// Seconds of one `op`: the best of `runs` times between two points where nothing is under way. On a
// GPU each is the mean of several calls, given at once, after one that warms up.
double OpSeconds(backend::Backend& backend, const backend::Op& op, int runs);

// Ceilings of a device, by its own kernels: bytes read plus written by a large copy; FLOP/s of a
// large square product.
double CopyBytesPerSecond(backend::Backend& backend, int runs);
double MatmulFlopsPerSecond(backend::Backend& backend, bool bf16, int runs);

}  // namespace takt::bench
