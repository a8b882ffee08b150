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
  // Gradients of the residual stream, in f32, as a product reads them: one of I, one of W.
  std::int64_t rounded_each = 0;
  // Gradients of attention's scores, of as many sequences of a microbatch as are computed at once,
  // where cuDNN does.
  std::int64_t scores = 0;

  std::int64_t total() const;  // as it is allocated
};

// Of a model with kernels.
GpuScratch GpuScratchOf(const model::Model& model);

}  // namespace takt::plan
