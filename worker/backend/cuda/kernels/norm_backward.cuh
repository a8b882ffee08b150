// SPDX-License-Identifier: Apache-2.0
// Has the backward of a norm that sums over rows on its way.
#pragma once

#include <cstdint>

#include "worker/backend/cuda/kernels/kernels.h"
#include "worker/backend/cuda/kernels/scratch.cuh"

namespace takt::backend::cuda {

// Returns whether LaunchWithSums computes an op with these sums. The others take several kernels.
inline bool SumsOnTheWay(const float* d_weight, std::int64_t columns) {
  return d_weight != nullptr && columns > kFewColumns && columns <= kMostSummedColumns;
}

void LaunchWithSums(const LayerNormBackwardInput& op, const LaunchContext& context);
void LaunchWithSums(const RmsNormBackwardInput& op, const LaunchContext& context);

}  // namespace takt::backend::cuda
