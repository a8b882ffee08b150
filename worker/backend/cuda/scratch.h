// SPDX-License-Identifier: Apache-2.0
// Memory that the ops of one stream use one after another.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "worker/backend/cuda/arena.h"

namespace takt::backend::cuda {

// Grows to the largest op that its backend is prepared for (Backend::Prepare). For a larger op it
// grows when that op runs, which waits for the device, and so for the peers that work on the device
// waits for. That must not happen in a rank that trains. Thread: its backend's.
class Scratch {
 public:
  // arena: borrowed, outlives the scratch.
  explicit Scratch(Arena& arena) : arena_(arena) {}
  ~Scratch() { Release(); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // Returns at least so many bytes, with unspecified contents, which are valid until the next call.
  // Null for none.
  absl::StatusOr<std::byte*> AtLeast(std::int64_t bytes);

  // Does the same, and enqueues on the stream that these bytes become zero.
  absl::StatusOr<std::byte*> Zeros(std::int64_t bytes, cudaStream_t stream);

  // Gives all of it back. Nothing may use it any more.
  void Release();

 private:
  Arena& arena_;
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

}  // namespace takt::backend::cuda
