// SPDX-License-Identifier: Apache-2.0
// Memory that one stream's ops use one after another.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "worker/backend/cuda/arena.h"

namespace takt::backend::cuda {

// Grows to the largest op of the first step, and no more after it. Thread: its backend's.
class Scratch {
 public:
  // arena: borrowed, outlives the scratch.
  explicit Scratch(Arena& arena) : arena_(arena) {}
  ~Scratch();  // nothing uses it any more
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // At least so many bytes, contents unspecified, until the next call. Null for none.
  absl::StatusOr<std::byte*> AtLeast(std::int64_t bytes);

 private:
  Arena& arena_;
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

}  // namespace takt::backend::cuda
