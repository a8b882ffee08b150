// SPDX-License-Identifier: Apache-2.0
// Opens the device that a benchmark computes on, and measures its limits.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/memory_kind.h"
#include "worker/backend/backend.h"
#include "worker/backend/memory_ledger.h"

namespace takt::bench {

struct DeviceOptions {
  std::string device = "cpu";               // "cpu", or "cuda" for the first GPU
  int threads = 1;                          // of the CPU
  MemoryBytes predicted;                    // the GPU's backend reserves that much at once
  backend::MemoryLedger* ledger = nullptr;  // borrowed, outlives the factory; null: no counting
  bool any_order_attention = false;         // as CudaOptions
};

// Errors say why there is no GPU (worker/plugin).
absl::StatusOr<std::unique_ptr<backend::BackendFactory>> OpenDevice(const DeviceOptions& options);

// Returns the seconds of one `op`, as the best of `runs` measurements. Each begins and ends when
// nothing runs on the device. On a GPU a measurement is the mean of several calls that are given at
// once, after one that warms up.
double OpSeconds(backend::Backend& backend, const backend::Op& op, int runs);

// These are the limits of a device by its own kernels: the bytes that a large copy reads and writes
// in a second, and the FLOP/s of a large square product.
double CopyBytesPerSecond(backend::Backend& backend, int runs);
double MatmulFlopsPerSecond(backend::Backend& backend, bool bf16, int runs);

}  // namespace takt::bench
