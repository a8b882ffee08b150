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

namespace takt::backend {

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

// Owned by whoever created it; ends when destroyed. Thread: one caller at a time; a lane that
// computes beside another has a backend of its own (on the CPU with one thread it costs nothing,
// and buffers may be shared between CPU backends).
class Backend {
 public:
  virtual ~Backend() = default;

  // Runs `op` after all ops before it. On return its host outputs (losses, norms) hold their
  // values; other outputs are readable by later ops, and by the host if memory is host memory, else
  // after Synchronize. Errors: kInvalidArgument (a size or a pointer that the op's rules forbid),
  // kInternal (device fault).
  virtual absl::Status Run(const Op& op) = 0;

  // Zeroed memory, of which AllocatedBytes are taken.  Errors: kResourceExhausted.
  virtual absl::StatusOr<Buffer> Allocate(std::size_t bytes, MemoryKind kind) = 0;

  // Between host memory and memory of this backend, in order with the ops; complete on return.
  virtual absl::Status CopyFromHost(std::span<const std::byte> source, std::byte* destination) = 0;
  virtual absl::Status CopyToHost(const std::byte* source, std::span<std::byte> destination) = 0;

  // Blocks until every op is done.
  virtual absl::Status Synchronize() = 0;

  virtual bool memory_is_host() const = 0;
  virtual int threads() const = 0;
  // For logs and for comparing numerics: results have the same bits between backends of equal
  // description.
  virtual std::string description() const = 0;
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

// What CpuOptions::instruction_set may be here, best first.
std::vector<std::string> CpuInstructionSets();

// FLOP/s of a typical matmul on `backend`, for cost estimates before profiles exist: the best of at
// least five rounds after one that warms up. 50 ms, or those six rounds if they take longer.
absl::StatusOr<double> MeasureMatmulFlops(Backend& backend, const Clock& clock = Clock::Real());

}  // namespace takt::backend
