// SPDX-License-Identifier: Apache-2.0
// A simulated accelerator for tests on any machine. Its memory faults the host, and ops and copies
// happen later, on streams. CPU kernels compute the ops, so the bits are theirs. New memory is full
// of NaNs unless Allocate promises zeros, so that results show who reads what nobody wrote.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/time/time.h"
#include "worker/backend/backend.h"
#include "worker/backend/memory_ledger.h"

namespace takt::backend {

struct DiscreteOptions {
  int threads = 1;  // of backends that compute
  // True: a stream does nothing before the host waits for it, which shows every missing wait.
  // False: it does what it is given at once, beside the host.
  bool lazy = false;
  // True: backends refuse ops that they were not prepared for (Backend::Prepare), and once such an
  // op has run, also Allocate.
  bool prepared_only = false;
  // Where replays of recordings are counted; borrowed, outlives the backends. Null: nowhere.
  std::atomic<std::int64_t>* replays = nullptr;
  MemoryLedger* ledger = nullptr;  // as CpuOptions
  // How many launches, copies and events each stream's queue holds. An enqueue into a full one
  // blocks every enqueue of the device; after `queue_patience` the stream fails. 0: any number.
  std::size_t queue_capacity = 0;
  absl::Duration queue_patience = absl::Seconds(20);
  // More than 0: all its memory lies in one region of so many bytes, which other devices may open
  // (peer_memory.h). Memory that was freed is not used again.
  std::size_t shared_bytes = 0;
  // Where copies from regions of other devices are counted, as `replays`.
  std::atomic<std::int64_t>* peer_copies = nullptr;
  // False: streams are given work as far ahead as the host gets, without a LaunchWindow.
  bool bounds_launches = true;
};

// Each call creates another device.
std::unique_ptr<BackendFactory> CreateDiscreteBackends(const DiscreteOptions& options);

}  // namespace takt::backend
