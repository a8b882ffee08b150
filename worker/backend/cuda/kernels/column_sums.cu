// SPDX-License-Identifier: Apache-2.0
// Sums each column over rows, for gradients of biases and of the weights of norms. Warps add up
// runs of rows side by side; then the runs are added (partial_sums.cuh).
#include "worker/backend/cuda/kernels/device.cuh"
#include "worker/backend/cuda/kernels/kernels.h"
#include "worker/backend/cuda/kernels/partial_sums.cuh"
#include "worker/backend/cuda/kernels/scratch.cuh"
#include "worker/backend/cuda/kernels/two_stages.cuh"

namespace takt::backend::cuda {
namespace {

// The terms that row r adds to the sums, for each output. kFours holds for everything that is read.
template <class D>
struct BiasTerms {
  static constexpr int kOutputs = 1;
  const D* d_output;
  template <bool kFours>
  __device__ void operator()(std::int64_t r, std::int64_t i, std::int64_t n, Four* terms) const {
    terms[0] = Load<kFours>(d_output + r * n, i, n);
  }
};

template <class D, class X>
struct LayerNormTerms {
  static constexpr int kOutputs = 2;  // weight, bias
  const D* d_output;
  const X* x;
  const float* mean;
  const float* rstd;
  template <bool kFours>
  __device__ void operator()(std::int64_t r, std::int64_t i, std::int64_t n, Four* terms) const {
    const Four d = Load<kFours>(d_output + r * n, i, n), v = Load<kFours>(x + r * n, i, n);
    terms[0] = Each([&](int k) { return d.v[k] * ((v.v[k] - mean[r]) * rstd[r]); });
    terms[1] = d;
  }
};

template <class D, class X>
struct RmsNormTerms {
  static constexpr int kOutputs = 1;
  const D* d_output;
  const X* x;
  const float* rstd;
  template <bool kFours>
  __device__ void operator()(std::int64_t r, std::int64_t i, std::int64_t n, Four* terms) const {
    const Four d = Load<kFours>(d_output + r * n, i, n), v = Load<kFours>(x + r * n, i, n);
    terms[0] = Each([&](int k) { return d.v[k] * (v.v[k] * rstd[r]); });
  }
};

// Warp w of block (x, y) sums run 8 y + w of columns [128 x, 128 x + 128).
template <bool kFours, class Terms>
__device__ inline void SumRun(const Terms& terms, const RowRuns& runs, const PartialSums& sums,
                              unsigned block) {
  constexpr int kOutputs = Terms::kOutputs;
  const unsigned warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const unsigned x = block % sums.column_groups(), y = block / sums.column_groups();
  const std::int64_t column = static_cast<std::int64_t>(x) * kSumColumns + lane * 4;
  const std::int64_t run = static_cast<std::int64_t>(y) * kSumWarps + warp;
  if (run >= runs.count || column >= sums.columns) return;
  const std::int64_t begin = run * runs.rows_per_run, end = runs.end(run);
  Four of_run[kOutputs] = {};
#pragma unroll 4
  for (std::int64_t r = begin; r < end; ++r) {
    Four row[kOutputs];
    terms.template operator()<kFours>(r, column, sums.columns, row);
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) of_run[o] = Added(of_run[o], row[o]);
  }
#pragma unroll
  for (int o = 0; o < kOutputs; ++o) StorePartial(sums, run, o, column, of_run[o]);
}

struct ColumnShared {
  SumShared sums;
  unsigned block;
};

template <bool kFours, class Terms>
__global__ __launch_bounds__(kSumThreads) void SumColumnsKernel(Terms terms, RowRuns runs,
                                                                PartialSums sums,
                                                                TwoStages stages) {
  auto& shared = Shared<ColumnShared>();
  const unsigned block = StartBlock(stages, &shared.block);
  if (block < stages.first) {
    SumRun<kFours>(terms, runs, sums, block);
    EndFirstStage(stages);
  } else {
    WaitForFirstStage(stages);
    AddPartials(sums, block - stages.first, shared.sums);
  }
}

// outputs: those of Terms, in its order.
template <class Terms>
void SumColumns(const Terms& terms, std::int64_t rows, std::int64_t columns, bool fours,
                float* const (&outputs)[Terms::kOutputs], bool accumulate,
                const LaunchContext& context) {
  const RowRuns runs(rows);
  const PartialSums sums = PartialSumsOf(outputs, runs.count, columns, accumulate, context);
  const auto runs_of_blocks = static_cast<unsigned>(CeilDiv(runs.count, kSumWarps));
  const TwoStages stages = {.counts = context.block_counts,
                            .first = sums.column_groups() * runs_of_blocks,
                            .second = sums.blocks()};
  Choose(fours, [&](auto kFours) {
    LaunchKernel(SumColumnsKernel<decltype(kFours)::value, Terms>,
                 stages.Launched(kSumThreads, sizeof(ColumnShared)), context.stream, terms, runs,
                 sums, stages);
  });
}

}  // namespace

void Launch(const BiasGrad& op, const LaunchContext& context) {
  From(op.d_output, [&]<class D>(const D* d) {
    SumColumns(BiasTerms<D>{d}, op.rows, op.columns, InFours(op.columns, d), {op.d_bias},
               op.accumulate, context);
  });
}

void Launch(const LayerNormBackwardWeights& op, const LaunchContext& context) {
  From(op.d_output, [&]<class D>(const D* d) {
    From(op.x, [&]<class X>(const X* x) {
      SumColumns(LayerNormTerms<D, X>{d, x, op.mean, op.rstd}, op.rows, op.columns,
                 InFours(op.columns, d, x), {op.d_weight, op.d_bias}, op.accumulate, context);
    });
  });
}

void Launch(const RmsNormBackwardWeights& op, const LaunchContext& context) {
  From(op.d_output, [&]<class D>(const D* d) {
    From(op.x, [&]<class X>(const X* x) {
      SumColumns(RmsNormTerms<D, X>{d, x, op.rstd}, op.rows, op.columns, InFours(op.columns, d, x),
                 {op.d_weight}, op.accumulate, context);
    });
  });
}

}  // namespace takt::backend::cuda
