// SPDX-License-Identifier: Apache-2.0
// A simulated accelerator for tests on any machine. Its memory faults the host, and ops and copies
// happen later, on streams. CPU kernels compute the ops, so the bits are theirs.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "worker/backend/backend.h"
#include "worker/backend/memory_ledger.h"

namespace takt::backend {

struct DiscreteOptions {
  int threads = 1;  // of backends that compute
  // True: a stream does nothing before the host waits for it, which shows every missing wait.
  // False: it does what it is given at once, beside the host.
  bool lazy = false;
  // True: backends refuse ops that they were not prepared for (Backend::Prepare).
  bool prepared_only = false;
  // Where replays of recordings are counted; borrowed, outlives the backends. Null: nowhere.
  std::atomic<std::int64_t>* replays = nullptr;
  MemoryLedger* ledger = nullptr;  // as CpuOptions
};

// Each call creates another device.
std::unique_ptr<BackendFactory> CreateDiscreteBackends(const DiscreteOptions& options);

}  // namespace takt::backend
