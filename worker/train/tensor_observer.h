// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "common/base/id.h"
#include "worker/backend/backend.h"

namespace takt::train {

// Sees activations and their gradients as they are computed, on the compute lane and on the thread
// of the B of a pair, which may be at the same time. For tests. Names: "act.blocks.3.input",
// "act.final_norm.input", "act.final_norm.output", "logits" (once for each block of the
// vocabulary, and of each slice of rows if the head is sliced), and "act_grad." instead of "act."
// for gradients. Values in bf16 are widened.
using TensorObserver = std::function<void(const std::string& name, MicrobatchId microbatch,
                                          std::span<const float> values)>;

// An observer, or none, bound to a microbatch.
struct TensorProbe {
  const TensorObserver* observer = nullptr;
  MicrobatchId microbatch;
  backend::Backend* backend = nullptr;  // the owner of the memory

  struct Matrix {
    backend::Operand data;
    std::int64_t rows = 0, columns = 0;
    std::int64_t stride = 0;  // elements between rows; 0: columns
  };

  explicit operator bool() const { return observer != nullptr; }
  // Waits until the backend has done what it was given.
  void operator()(const std::string& name, const Matrix& matrix) const;
};

}  // namespace takt::train
