// SPDX-License-Identifier: Apache-2.0
// The second stage of sums over rows: it adds up what the first stage summed of each run of rows.
// The runs are those of RowRuns (scratch.cuh), and they are added in an order that depends on
// their number alone, so a sum has the same bits whichever kernel was its first stage.
#pragma once

#include <cstdint>

#include "worker/backend/cuda/kernels/device.cuh"
#include "worker/backend/cuda/kernels/kernels.h"
#include "worker/backend/cuda/kernels/scratch.cuh"
#include "worker/backend/cuda/kernels/two_stages.cuh"

namespace takt::backend::cuda {

// One first stage has at most so many outputs: all of LayerNormSums.
inline constexpr int kMostSummedOutputs = 4;

// A block of 8 warps has 128 columns of one output, at most 256 KiB of partial sums.
inline constexpr int kSumWarps = 8;
inline constexpr int kSumThreads = kSumWarps * kWarpSize;
inline constexpr int kSumColumns = kWarpSize * 4;

// outputs[o][column] (+)= the sum over runs of
// partials[run * run_stride + o * output_stride + column].
struct PartialSums {
  // 16-byte aligned, as every row of it is: both strides are multiples of four, and a row may be
  // read up to the next multiple of four columns (PartialStride).
  float* partials = nullptr;
  std::int64_t run_stride = 0, output_stride = 0;
  std::int64_t runs = 0, columns = 0;
  float* outputs[kMostSummedOutputs] = {};  // the first num_outputs are set; of any alignment
  int num_outputs = 0;
  bool accumulate = false;
  bool in_fours = false;  // InFours holds for all outputs

  __host__ __device__ unsigned column_groups() const {
    return static_cast<unsigned>(CeilDiv(columns, kSumColumns));
  }
  unsigned blocks() const { return column_groups() * static_cast<unsigned>(num_outputs); }
};

struct SumShared {
  Four sums[kSumWarps][kWarpSize];
};

__device__ inline Four Added(const Four& a, const Four& b) {
  return Each([&](int k) { return a.v[k] + b.v[k]; });
}

// The first stage stores its sums of a group of four columns.
__device__ inline void StorePartial(const PartialSums& op, std::int64_t run, int output,
                                    std::int64_t column, const Four& sum) {
  Store<true>(op.partials + run * op.run_stride + output * op.output_stride, column, op.columns,
              sum);
}

// Computes one block of the second stage, after WaitForFirstStage. Warp w adds runs w, w + 8, ...;
// the eight warps are added in order.
__device__ inline void AddPartials(const PartialSums& op, unsigned block, SumShared& shared) {
  const unsigned warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const unsigned output_index = block / op.column_groups();
  const std::int64_t column =
      static_cast<std::int64_t>(block % op.column_groups()) * kSumColumns + lane * 4;
  Four sum = {};
  if (column < op.columns) {
    const float* partials = op.partials + output_index * op.output_stride + column;
#pragma unroll 8
    for (std::int64_t run = warp; run < op.runs; run += kSumWarps)
      sum = Added(sum, LoadPastL1(partials + run * op.run_stride));
  }
  shared.sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= op.columns) return;
  sum = {};
  for (int w = 0; w < kSumWarps; ++w) sum = Added(sum, shared.sums[w][lane]);
  float* output = op.outputs[output_index];
  if (op.in_fours) {
    if (op.accumulate) sum = Added(Load<true>(output, column, op.columns), sum);
    Store<true>(output, column, op.columns, sum);
  } else {
    if (op.accumulate) sum = Added(Load<false>(output, column, op.columns), sum);
    Store<false>(output, column, op.columns, sum);
  }
}

// Returns the sums of `runs` of all rows, in the context's scratch.
template <int kOutputs>
PartialSums PartialSumsOf(float* const (&outputs)[kOutputs], std::int64_t runs,
                          std::int64_t columns, bool accumulate, const LaunchContext& context) {
  const std::int64_t stride = PartialStride(columns);
  PartialSums sums = {.partials = static_cast<float*>(context.scratch),
                      .run_stride = kOutputs * stride,
                      .output_stride = stride,
                      .runs = runs,
                      .columns = columns,
                      .outputs = {},
                      .num_outputs = kOutputs,
                      .accumulate = accumulate,
                      .in_fours = true};
  for (int o = 0; o < kOutputs; ++o) {
    sums.outputs[o] = outputs[o];
    sums.in_fours = sums.in_fours && InFours(columns, outputs[o]);
  }
  return sums;
}

}  // namespace takt::backend::cuda
