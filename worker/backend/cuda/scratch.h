// SPDX-License-Identifier: Apache-2.0
// Memory that the ops of one stream use one after another.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "worker/backend/cuda/arena.h"

namespace takt::backend::cuda {

// Grows to the largest op that its backend is prepared for (Backend::Prepare). For a larger op it
// grows when that op runs, which waits for the device, and so for the peers of what runs there. A
// rank that trains must not get there. Thread: its backend's.
class Scratch {
 public:
  // arena: borrowed, outlives the scratch.
  explicit Scratch(Arena& arena) : arena_(arena) {}
  ~Scratch() { Release(); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // At least so many bytes, contents unspecified, until the next call. Null for none.
  absl::StatusOr<std::byte*> AtLeast(std::int64_t bytes);

  // Gives all of it back. Nothing uses it any more.
  void Release();

 private:
  Arena& arena_;
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

}  // namespace takt::backend::cuda
