// SPDX-License-Identifier: Apache-2.0
// Sums each column over rows, for gradients of biases and of the weights of norms. There are two
// stages, of one launch each: warps add up runs of rows side by side, then the runs are added.
// There warp w of a block has runs w, w + 8, ...; the eight warps are added in order.
#include "worker/backend/cuda/kernels/device.cuh"
#include "worker/backend/cuda/kernels/kernels.h"
#include "worker/backend/cuda/kernels/partial_sums.cuh"
#include "worker/backend/cuda/kernels/scratch.cuh"

namespace takt::backend::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kColumns = kWarpSize * 4;  // of a block

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

__device__ inline Four Added(const Four& a, const Four& b) {
  return Each([&](int k) { return a.v[k] + b.v[k]; });
}

// Where the sums of a run go: partials[run * run_stride + output * output_stride + column].
struct Runs {
  float* partials;
  std::int64_t run_stride, output_stride;
  std::int64_t rows, rows_per_run, count, columns;
};

// Warp w of block (x, y) has run 8 y + w of columns [128 x, 128 x + 128).
template <bool kFours, class Terms>
__global__ __launch_bounds__(kThreads) void SumRunsKernel(Terms terms, Runs op) {
  constexpr int kOutputs = Terms::kOutputs;
  const unsigned warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kColumns + lane * 4;
  const std::int64_t run = static_cast<std::int64_t>(blockIdx.y) * kWarps + warp;
  if (run >= op.count || column >= op.columns) return;
  const std::int64_t begin = run * op.rows_per_run, run_end = begin + op.rows_per_run;
  const std::int64_t end = run_end < op.rows ? run_end : op.rows;
  Four sums[kOutputs] = {};
#pragma unroll 4
  for (std::int64_t r = begin; r < end; ++r) {
    Four row[kOutputs];
    terms.template operator()<kFours>(r, column, op.columns, row);
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) sums[o] = Added(sums[o], row[o]);
  }
  // Rows of partial sums are whole groups of four.
#pragma unroll
  for (int o = 0; o < kOutputs; ++o) {
    Store<true>(op.partials + run * op.run_stride + o * op.output_stride, column, op.columns,
                sums[o]);
  }
}

struct ColumnShared {
  Four sums[kWarps][kWarpSize];
};

// Block (x, 0, o) has output o of columns [128 x, 128 x + 128).
template <bool kFours>
__global__ __launch_bounds__(kThreads) void SumPartialsKernel(PartialSums op) {
  const unsigned warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kColumns + lane * 4;
  const float* partials = op.partials + blockIdx.z * op.output_stride;
  Four sum = {};
  if (column < op.columns) {
#pragma unroll 4
    for (std::int64_t run = warp; run < op.runs; run += kWarps)
      sum = Added(sum, Load<true>(partials + run * op.run_stride, column, op.columns));
  }
  auto& shared = Shared<ColumnShared>();
  shared.sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= op.columns) return;
  sum = {};
  for (int w = 0; w < kWarps; ++w) sum = Added(sum, shared.sums[w][lane]);
  float* output = op.outputs[blockIdx.z];
  if (op.accumulate) sum = Added(Load<kFours>(output, column, op.columns), sum);
  Store<kFours>(output, column, op.columns, sum);
}

template <class Terms>
struct Outputs {
  float* data[Terms::kOutputs];
};

template <class Terms>
void SumColumns(const Terms& terms, std::int64_t rows, std::int64_t columns, bool fours,
                const Outputs<Terms>& outputs, bool accumulate, const LaunchContext& context) {
  const RowRuns runs(rows);
  const std::int64_t stride = PartialStride(columns), run_stride = Terms::kOutputs * stride;
  auto* const partials = static_cast<float*>(context.scratch);
  const Blocks blocks = {{static_cast<unsigned>(CeilDiv(columns, kColumns)),
                          static_cast<unsigned>(CeilDiv(runs.count, kWarps))},
                         kThreads};
  Choose(fours, [&](auto kFours) {
    LaunchKernel(SumRunsKernel<decltype(kFours)::value, Terms>, blocks, context.stream, terms,
                 Runs{partials, run_stride, stride, rows, runs.rows_per_run, runs.count, columns});
  });
  PartialSums left = {.partials = partials,
                      .run_stride = run_stride,
                      .output_stride = stride,
                      .runs = runs.count,
                      .columns = columns,
                      .outputs = {},
                      .num_outputs = Terms::kOutputs,
                      .accumulate = accumulate};
  for (int o = 0; o < Terms::kOutputs; ++o) left.outputs[o] = outputs.data[o];
  SumPartials(left, context);
}

}  // namespace

void SumPartials(const PartialSums& op, const LaunchContext& context) {
  const Blocks blocks = {{static_cast<unsigned>(CeilDiv(op.columns, kColumns)), 1,
                          static_cast<unsigned>(op.num_outputs)},
                         kThreads,
                         sizeof(ColumnShared)};
  bool fours = true;
  for (int o = 0; o < op.num_outputs; ++o) fours = fours && InFours(op.columns, op.outputs[o]);
  Choose(fours, [&](auto kFours) {
    LaunchKernel(SumPartialsKernel<decltype(kFours)::value>, blocks, context.stream, op);
  });
}

void Launch(const BiasGrad& op, const LaunchContext& context) {
  From(op.d_output, [&]<class D>(const D* d) {
    SumColumns(BiasTerms<D>{d}, op.rows, op.columns, InFours(op.columns, d), {{op.d_bias}},
               op.accumulate, context);
  });
}

void Launch(const LayerNormBackwardWeights& op, const LaunchContext& context) {
  From(op.d_output, [&]<class D>(const D* d) {
    From(op.x, [&]<class X>(const X* x) {
      SumColumns(LayerNormTerms<D, X>{d, x, op.mean, op.rstd}, op.rows, op.columns,
                 InFours(op.columns, d, x), {{op.d_weight, op.d_bias}}, op.accumulate, context);
    });
  });
}

void Launch(const RmsNormBackwardWeights& op, const LaunchContext& context) {
  From(op.d_output, [&]<class D>(const D* d) {
    From(op.x, [&]<class X>(const X* x) {
      SumColumns(RmsNormTerms<D, X>{d, x, op.rstd}, op.rows, op.columns, InFours(op.columns, d, x),
                 {{op.d_weight}}, op.accumulate, context);
    });
  });
}

}  // namespace takt::backend::cuda
