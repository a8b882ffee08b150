// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "common/base/id.h"

namespace takt::train {

// Sees activations and their gradients as they come into being, on the compute lane. For tests.
// Names: "act.blocks.3.input", "act.final_norm.input", "act.final_norm.output", "logits", and
// "act_grad." in place of "act." for gradients.
using TensorObserver = std::function<void(const std::string& name, MicrobatchId microbatch,
                                          std::span<const float> values)>;

// An observer, or none, bound to a microbatch.
struct TensorProbe {
  const TensorObserver* observer = nullptr;
  MicrobatchId microbatch;

  explicit operator bool() const { return observer != nullptr; }
  void operator()(const std::string& name, const float* data, std::int64_t floats) const {
    (*observer)(name, microbatch, {data, static_cast<std::size_t>(floats)});
  }
};

}  // namespace takt::train
