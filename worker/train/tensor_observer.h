// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "common/base/id.h"
#include "common/base/status.h"
#include "worker/backend/backend.h"

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
  backend::Backend* backend = nullptr;  // whose memory is looked at

  explicit operator bool() const { return observer != nullptr; }
  // Waits until what the backend was given is done.
  void operator()(const std::string& name, const float* data, std::int64_t floats) const {
    std::vector<float> values(static_cast<std::size_t>(floats));
    TAKT_CHECK(backend
                   ->CopyToHost(reinterpret_cast<const std::byte*>(data),
                                std::as_writable_bytes(std::span(values)))
                   .ok());
    TAKT_CHECK(backend->Synchronize().ok());
    (*observer)(name, microbatch, values);
  }
};

}  // namespace takt::train
