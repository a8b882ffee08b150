// SPDX-License-Identifier: Apache-2.0
// Runs kernels behind one interface: a device's memory, and ops that run on it in order.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/matmul_rates.h"
#include "common/base/memory_kind.h"
#include "worker/backend/memory_backend.h"
#include "worker/backend/ops.h"
#include "worker/backend/recorder.h"
#include "worker/backend/stream.h"

namespace takt::backend {

class KernelPlans;
class PeerMemory;

// A MemoryBackend that runs every op.
class Backend : public MemoryBackend {
 public:
  // Runs `op` after all ops before it. Its host outputs (losses, norms) are memory of AllocateHost.
  // Errors: kInvalidArgument (a size or a pointer that the op's rules forbid), kInternal (device
  // fault, perhaps of an earlier op).
  virtual absl::Status Run(const Op& op) = 0;
  absl::Status Run(const Copy& op) final { return Run(Op(op)); }
  absl::Status Run(const Add& op) final { return Run(Op(op)); }
  absl::Status Run(const PackBf16& op) final { return Run(Op(op)); }

  // Allocates the memory and makes the choices that ops like `op` need beside their tensors, and
  // loads the kernels of libraries by launching them once on other memory. Afterwards, Run of such
  // an op on this backend allocates, loads and waits for nothing. An op is like another if it has
  // the same sizes, the same pointers are null, and the others have the same alignment; the memory
  // behind the pointers is not used. Fill, Copy, Add, PackBf16 and ops with ExpertRows, but for
  // RouteTokensBackward, need no preparation. No work of this backend may be under way.
  // Errors: as Run; kResourceExhausted.
  virtual absl::Status Prepare(const Op& /*op*/) { return absl::OkStatus(); }

  // Returns memory for what this backend is given from now on, with unspecified contents. The end
  // of the buffer frees it behind what the backend was given before. Unlike Allocate, none of this
  // waits for work that is under way, so it may happen in a step. Other streams may use the memory
  // in work that this backend's stream waits for before the end.  Errors: as Allocate.
  virtual absl::StatusOr<Buffer> AllocateInOrder(std::size_t bytes, MemoryKind kind) {
    return Allocate(bytes, kind);
  }

  // Null: this backend cannot record.
  virtual Recorder* recorder() { return nullptr; }
  // Describes the backend for logs and for comparing numerics: backends of equal description
  // compute the same bits.
  virtual std::string description() const = 0;
};

// Makes the backends of one rank. They work on one device (or host) and share its memory. The
// factory outlives them and their buffers. Thread-safe.
class BackendFactory {
 public:
  virtual ~BackendFactory() = default;
  // Creates the backend of the lane that computes.
  virtual absl::StatusOr<std::unique_ptr<Backend>> CreateCompute() = 0;
  // Creates the backend of a lane that moves and adds. It opens no kernel libraries and starts no
  // threads.
  virtual absl::StatusOr<std::unique_ptr<MemoryBackend>> CreateMemory(StreamKind kind) = 0;
  virtual bool memory_is_host() const = 0;  // that of its backends
  // Null: the shape of an op alone says which kernel computes it.
  virtual KernelPlans* kernel_plans() { return nullptr; }
  // Null: no other process can reach the memory of its backends.
  virtual PeerMemory* peer_memory() { return nullptr; }
  // Returns an error, for good, once this process has lost the device.  Blocks: never.
  virtual absl::Status status() { return absl::OkStatus(); }
};

// Measures the FLOP/s of a typical matmul on `backend`, for cost estimates before profiles exist.
// Each rate is the best of at least five rounds after one that warms up. It takes 50 ms, or as long
// as those six rounds if they take longer.
absl::StatusOr<MatmulRates> MeasureMatmuls(Backend& backend, const Clock& clock = Clock::Real());

}  // namespace takt::backend
