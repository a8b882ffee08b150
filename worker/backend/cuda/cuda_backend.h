// SPDX-License-Identifier: Apache-2.0
// One GPU as backends. It needs no CUDA headers: module.cc hands it to the worker.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "common/base/memory_kind.h"
#include "worker/backend/backend.h"
#include "worker/backend/cuda/arena.h"
#include "worker/backend/fp8.h"
#include "worker/backend/kernel_plans.h"
#include "worker/backend/memory_ledger.h"
#include "worker/backend/plan_cache.h"

namespace takt::backend::cuda {

struct CudaOptions {
  int device = 0;         // in the order of ListDevices
  MemoryBytes predicted;  // what the plan says this rank holds on the device; see ArenaOptions
  std::int64_t beside_bytes = 0;   // as ArenaOptions
  MemoryLedger* ledger = nullptr;  // borrowed, outlives all buffers; null: it is not counted
  // Says how many multiprocessors products leave to kernels that wait for other ranks (NCCL's). The
  // choice of an algorithm does not depend on it.
  int sms_for_communication = 0;
  bool tf32 = false;  // products of f32 may drop the operands' last 13 bits
  // True: cuDNN's gradient of attention may add in the order of arrival, which takes less time and
  // memory, and gives other bits on every run. Jobs that are not exact set it.
  bool any_order_attention = false;
  // True: choices that the plan lacks are timed while PlanCache::may_time, so they may differ from
  // run to run. False: they are the libraries' first guesses, which depend only on the shape, the
  // device and the versions.
  bool tune = false;
  // Where possible, the library's kernel (true) or ours after it (false) computes the epilogue of a
  // product. Tests and measurements set it. Nothing: the device or timings decide.
  std::optional<bool> fused_epilogues;
  Fp8Counters* fp8_counters = nullptr;  // borrowed, outlives the backends; null: no counting
};

// Its backends compute on streams of their own, and share memory and kernel plans. Host outputs of
// their ops are memory of AllocateHost, which the device writes itself.
class CudaDevice : public BackendFactory, public KernelPlans {
 public:
  virtual const Arena& arena() const = 0;
  KernelPlans* kernel_plans() final { return this; }
};

// Errors: those of ListDevices; kInvalidArgument (no such device); kResourceExhausted (the
// prediction does not fit).
absl::StatusOr<std::unique_ptr<CudaDevice>> OpenDevice(const CudaOptions& options);

}  // namespace takt::backend::cuda
