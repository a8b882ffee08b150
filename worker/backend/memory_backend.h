// SPDX-License-Identifier: Apache-2.0
// Memory of a device, and the work on it that needs no kernel libraries: copies, sums, packing and
// events.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/memory_kind.h"
#include "worker/backend/ops.h"
#include "worker/backend/stream.h"

namespace takt::backend {

// Memory of one backend, aligned to 64 bytes. It is freed at destruction and must not outlive its
// backend. Move-only.
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

// Serves a lane that only moves and adds: it loads tokens, passes messages, sums gradients, gathers
// weights. Its creator owns it, and its destructor waits for the work that it was given. Thread:
// one caller at a time, so each lane has its own.
//
// Run and the copies may return before they are done. They take place in the order given, and each
// reads what the earlier ones wrote. The host sees their results (host outputs of ops, memory that
// was copied to, the device's memory itself if it is host memory) after Synchronize, or after a
// wait for an event that `stream()` recorded behind them. Until then the host must not touch these
// results, nor write to memory that is copied from. Without a stream everything is done on return.
class MemoryBackend {
 public:
  virtual ~MemoryBackend() = default;

  // Returns memory, zeroed if it is for weights or the optimizer's state, and counts AllocatedBytes
  // of it. All backends of one factory share it.  Blocks: on a device until that is idle, so make
  // all memory before step 1.  Errors: kResourceExhausted.
  virtual absl::StatusOr<Buffer> Allocate(std::size_t bytes, MemoryKind kind) = 0;
  // Returns zeroed host memory that ops and copies reach directly (pinned). It is not counted. It
  // may outlive the backend, but not the factory.
  virtual absl::StatusOr<Buffer> AllocateHost(std::size_t bytes) = 0;

  // Copies between any host memory and memory of this backend. Only copies from and to memory of
  // AllocateHost proceed beside other work.
  virtual absl::Status CopyFromHost(std::span<const std::byte> source, std::byte* destination) = 0;
  virtual absl::Status CopyToHost(const std::byte* source, std::span<std::byte> destination) = 0;

  // Errors: kInvalidArgument (a size or a pointer that the op's rules forbid), kInternal (device
  // fault, perhaps of earlier work).
  virtual absl::Status Run(const Copy& op) = 0;
  virtual absl::Status Run(const Add& op) = 0;
  // Errors: also kInvalidArgument (the op rounds to FP8).
  virtual absl::Status Run(const PackBf16& op) = 0;

  // Blocks until everything is done.  Errors: those of any work given before.
  virtual absl::Status Synchronize() = 0;

  // Null: Run and the copies are done when they return.
  virtual Stream* stream() = 0;
  virtual bool memory_is_host() const = 0;
};

}  // namespace takt::backend
