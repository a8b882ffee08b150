// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "common/layout/tensor.h"
#include "common/model/model.h"

namespace takt::layout {

// Lays out the device memory that the GPU backend (worker/backend/cuda) takes for itself while ops
// of a rank run, beside the scratch of the model's layers. The backend takes at most this much; its
// libraries choose on the device how much a product or attention takes. Tests of the backend hold
// it to this.
// microbatches_of_w: the most that one W computes.  Precondition: the model has kernels.
Section LayOutGpuScratch(const model::Model& model, int microbatches_of_w = 1);

}  // namespace takt::layout
