// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "common/model/model.h"

namespace takt::plan {

// Bytes of device memory that the GPU backend (worker/backend/cuda, whose tests hold this to it)
// takes for itself while ops of a rank run, beside the scratch of the model's layers. At most: what
// a product or attention takes is chosen on the device, by its libraries.
struct GpuScratch {
  std::int64_t workspace = 0;  // of products
  // Gradients of the residual stream, in f32, as products of I and of W read them.
  std::int64_t rounded_for_i = 0, rounded_for_w = 0;
  // Gradients of attention's scores, of as many sequences of a microbatch as are computed at once,
  // where cuDNN does.
  std::int64_t scores = 0;

  std::int64_t total() const;  // as it is allocated
};

// Of a model with kernels, of which one W computes so many microbatches at most.
GpuScratch GpuScratchOf(const model::Model& model, int microbatches_of_w = 1);

}  // namespace takt::plan
