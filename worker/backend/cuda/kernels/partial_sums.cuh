// SPDX-License-Identifier: Apache-2.0
// The second stage of sums over rows: it adds up what the first stage summed of each run of rows.
// The runs are those of RowRuns (scratch.cuh), and they are added in an order that depends on
// their number alone, so a sum has the same bits whichever kernel was its first stage.
#pragma once

#include <cstdint>

#include "worker/backend/cuda/kernels/kernels.h"

namespace takt::backend::cuda {

// One first stage has at most so many outputs: all of LayerNormSums.
inline constexpr int kMostSummedOutputs = 4;

// outputs[o][column] (+)= the sum over runs of
// partials[run * run_stride + o * output_stride + column].
struct PartialSums {
  // 16-byte aligned, as every row of it is: both strides are multiples of four, and a row may be
  // read up to the next multiple of four columns (PartialStride).
  const float* partials = nullptr;
  std::int64_t run_stride = 0, output_stride = 0;
  std::int64_t runs = 0, columns = 0;
  float* outputs[kMostSummedOutputs] = {};  // the first num_outputs are set; of any alignment
  int num_outputs = 0;
  bool accumulate = false;
};

// Enqueues the second stage as one launch. The first stage must be before it on the same stream.
void SumPartials(const PartialSums& op, const LaunchContext& context);

}  // namespace takt::backend::cuda
