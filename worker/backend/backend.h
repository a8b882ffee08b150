// SPDX-License-Identifier: Apache-2.0
// Kernels behind one door: memory of a device and ops run on it in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/memory_kind.h"
#include "worker/backend/memory_ledger.h"
#include "worker/backend/ops.h"
#include "worker/backend/recorder.h"
#include "worker/backend/stream.h"

namespace takt::backend {

class KernelPlans;

// Memory of one backend, aligned to 64 bytes, freed at destruction; must not outlive its backend.
// Move-only.
class Buffer {
 public:
  using Free = std::function<void(std::byte*)>;

  Buffer() = default;
  Buffer(std::byte* data, std::size_t bytes, Free free)
      : data_(data, std::move(free)), bytes_(bytes) {}

  std::byte* data() const { return data_.get(); }
  std::size_t bytes() const { return bytes_; }
  float* floats() const { return reinterpret_cast<float*>(data_.get()); }
  std::span<float> float_span() const { return {floats(), bytes_ / sizeof(float)}; }

 private:
  std::unique_ptr<std::byte, Free> data_{nullptr, [](std::byte*) {}};
  std::size_t bytes_ = 0;
};

// Owned by whoever created it; ends when destroyed, after what was given to it is done. Thread: one
// caller at a time; a lane that computes beside another has a backend of its own.
//
// Run and the copies may return before they are done: they happen in the order given, each reads
// what those before it wrote. What the host sees of them (host outputs of ops, memory that was
// copied to, the memory itself if it is host memory) is there after Synchronize, or after a wait
// for an event that `stream()` recorded behind them; until then the host leaves it alone, and what
// is copied from. Without a stream all of it is done on return.
class Backend {
 public:
  virtual ~Backend() = default;

  // Runs `op` after all ops before it. Its host outputs (losses, norms) are memory of AllocateHost.
  // Errors: kInvalidArgument (a size or a pointer that the op's rules forbid), kInternal (device
  // fault, perhaps of an earlier op).
  virtual absl::Status Run(const Op& op) = 0;

  // Makes the room and the choices that ops like `op` need beside their tensors: Run of one, on
  // this backend, allocates nothing and waits for nothing after it. Like: of equal sizes, with the
  // same pointers null and as much aligned; they are not followed. Fill, Copy, Add and PackBf16
  // need none. Not while work of this backend is under way. Errors: as Run; kResourceExhausted.
  virtual absl::Status Prepare(const Op& /*op*/) { return absl::OkStatus(); }

  // Zeroed memory, of which AllocatedBytes are taken; of all backends of one factory.
  // Errors: kResourceExhausted.
  virtual absl::StatusOr<Buffer> Allocate(std::size_t bytes, MemoryKind kind) = 0;
  // Zeroed memory of the host that ops and copies reach without a detour (pinned); counted nowhere.
  // May outlive the backend, not its factory.
  virtual absl::StatusOr<Buffer> AllocateHost(std::size_t bytes) = 0;

  // Between any memory of the host and memory of this backend. Beside other work only from and to
  // memory of AllocateHost.
  virtual absl::Status CopyFromHost(std::span<const std::byte> source, std::byte* destination) = 0;
  virtual absl::Status CopyToHost(const std::byte* source, std::span<std::byte> destination) = 0;

  // Blocks until everything is done.  Errors: of any of it.
  virtual absl::Status Synchronize() = 0;

  // Null: Run and the copies are done when they return.
  virtual Stream* stream() = 0;
  // Null: it cannot record.
  virtual Recorder* recorder() { return nullptr; }
  virtual bool memory_is_host() const = 0;
  virtual int threads() const = 0;
  // For logs and for comparing numerics: results have the same bits between backends of equal
  // description.
  virtual std::string description() const = 0;
};

// Where a rank gets the backends of its lanes: one device (or host) of which all of them share the
// memory. Outlives them and their buffers. Thread-safe.
class BackendFactory {
 public:
  virtual ~BackendFactory() = default;
  virtual absl::StatusOr<std::unique_ptr<Backend>> Create(StreamKind kind) = 0;
  virtual bool memory_is_host() const = 0;  // of its backends
  // Null: the shape of an op alone says which kernel computes it.
  virtual KernelPlans* kernel_plans() { return nullptr; }
  // Not OK: what it computes on is lost to this process, for good, and why.  Blocks: never.
  virtual absl::Status status() { return absl::OkStatus(); }
};

struct CpuOptions {
  int threads = 1;  // >= 1, the caller's included: threads - 1 are created, once
  // "avx512", "avx2" or "baseline" of our own kernels; empty: the best this machine has.
  std::string instruction_set;
  MemoryLedger* ledger = nullptr;  // borrowed, outlives all buffers; null: nobody counts
};

// f32 on the host: oneDNN matmuls, own vectorised kernels for the rest (AVX-512, AVX2 or baseline,
// chosen at run time).
// Errors: kInvalidArgument (threads, or an instruction set that this machine has not).
absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(const CpuOptions& options);

// options.threads: of backends that compute; others have one.
std::unique_ptr<BackendFactory> CreateCpuBackends(const CpuOptions& options);

// What CpuOptions::instruction_set may be here, best first.
std::vector<std::string> CpuInstructionSets();

// FLOP/s of a typical matmul on `backend`, for cost estimates before profiles exist: the best of at
// least five rounds after one that warms up. 50 ms, or those six rounds if they take longer.
absl::StatusOr<double> MeasureMatmulFlops(Backend& backend, const Clock& clock = Clock::Real());

}  // namespace takt::backend
