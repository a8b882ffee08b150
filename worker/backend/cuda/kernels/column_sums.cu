// SPDX-License-Identifier: Apache-2.0
// Sums each column over rows, for gradients of biases and of the weights of norms. There are two
// stages, of one launch each: blocks add up runs of rows side by side, then the runs are added in
// order. Within a run warp w has rows w, w + 8, ...; the eight warps are added in order.
#include "worker/backend/cuda/kernels/device.cuh"
#include "worker/backend/cuda/kernels/kernels.h"
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
  std::int64_t stride;  // elements between rows
  template <bool kFours>
  __device__ void operator()(std::int64_t r, std::int64_t i, std::int64_t n, Four* terms) const {
    terms[0] = Load<kFours>(d_output + r * stride, i, n);
  }
};

template <class D>
struct LayerNormTerms {
  static constexpr int kOutputs = 2;  // weight, bias
  const D* d_output;
  const float* x;
  const float* mean;
  const float* rstd;
  template <bool kFours>
  __device__ void operator()(std::int64_t r, std::int64_t i, std::int64_t n, Four* terms) const {
    const Four d = Load<kFours>(d_output + r * n, i, n), v = Load<kFours>(x + r * n, i, n);
    terms[0] = Each([&](int k) { return d.v[k] * ((v.v[k] - mean[r]) * rstd[r]); });
    terms[1] = d;
  }
};

template <class D>
struct RmsNormTerms {
  static constexpr int kOutputs = 1;
  const D* d_output;
  const float* x;
  const float* rstd;
  template <bool kFours>
  __device__ void operator()(std::int64_t r, std::int64_t i, std::int64_t n, Four* terms) const {
    const Four d = Load<kFours>(d_output + r * n, i, n), v = Load<kFours>(x + r * n, i, n);
    terms[0] = Each([&](int k) { return d.v[k] * (v.v[k] * rstd[r]); });
  }
};

struct ColumnShared {
  Four sums[kWarps][kWarpSize];
};

// output[run * run_stride + o * output_stride + column] (+)= the sums of output o over the rows of
// run blockIdx.y.
struct Sums {
  float* output;
  std::int64_t run_stride, output_stride;
  std::int64_t rows, rows_per_run, columns;
  bool accumulate;
};

template <bool kFours, class Terms>
__device__ inline void SumRun(const Terms& terms, const Sums& op) {
  constexpr int kOutputs = Terms::kOutputs;
  const unsigned warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kColumns + lane * 4;
  const std::int64_t begin = blockIdx.y * op.rows_per_run;
  const std::int64_t run_end = begin + op.rows_per_run;
  const std::int64_t end = run_end < op.rows ? run_end : op.rows;
  Four sums[kOutputs] = {};
  if (column < op.columns) {
#pragma unroll 4
    for (std::int64_t r = begin + warp; r < end; r += kWarps) {
      Four row[kOutputs];
      terms.template operator()<kFours>(r, column, op.columns, row);
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) {
        sums[o] = Each([&](int k) { return sums[o].v[k] + row[o].v[k]; });
      }
    }
  }
  auto& shared = Shared<ColumnShared>();
#pragma unroll
  for (int o = 0; o < kOutputs; ++o) {
    if (o > 0) __syncthreads();
    shared.sums[warp][lane] = sums[o];
    __syncthreads();
    if (warp != 0 || column >= op.columns) continue;
    Four sum = {};
    for (int w = 0; w < kWarps; ++w) {
      const Four add = shared.sums[w][lane];
      sum = Each([&](int k) { return sum.v[k] + add.v[k]; });
    }
    float* output = op.output + blockIdx.y * op.run_stride + o * op.output_stride;
    if (op.accumulate) {
      const Four before = Load<kFours>(output, column, op.columns);
      sum = Each([&](int k) { return before.v[k] + sum.v[k]; });
    }
    Store<kFours>(output, column, op.columns, sum);
  }
}

template <bool kFours, class Terms>
__global__ __launch_bounds__(kThreads) void SumColumnsKernel(Terms terms, Sums op) {
  SumRun<kFours>(terms, op);
}

template <class Terms>
struct Outputs {
  float* data[Terms::kOutputs];
};

// What the runs of a first stage left, for each output.
template <class Terms>
struct Partials {
  const float* data;
  std::int64_t run_stride, output_stride;
  Outputs<Terms> outputs;
  std::int64_t runs, columns;
  bool accumulate;
};

// Block (.., .., o) has output o.
template <bool kFours, class Terms>
__global__ __launch_bounds__(kThreads) void SumPartialsKernel(Partials<Terms> op) {
  const std::int64_t o = blockIdx.z;
  const BiasTerms<float> terms = {op.data + o * op.output_stride, op.run_stride};
  SumRun<kFours>(terms,
                 Sums{op.outputs.data[o], 0, 0, op.runs, op.runs, op.columns, op.accumulate});
}

template <class Terms>
void SumColumns(const Terms& terms, std::int64_t rows, std::int64_t columns, bool fours,
                const Outputs<Terms>& outputs, bool accumulate, const LaunchContext& context) {
  const RowRuns runs(rows);
  const std::int64_t stride = PartialStride(columns), run_stride = Terms::kOutputs * stride;
  auto* partials = static_cast<float*>(context.scratch);
  const auto blocks = [&](std::int64_t count) {
    return Blocks{{static_cast<unsigned>(CeilDiv(columns, kColumns)), static_cast<unsigned>(count)},
                  kThreads,
                  sizeof(ColumnShared)};
  };
  Choose(fours, [&](auto kFours) {
    constexpr bool kF = decltype(kFours)::value;
    LaunchKernel(SumColumnsKernel<kF, Terms>, blocks(runs.count), context.stream, terms,
                 Sums{partials, run_stride, stride, rows, runs.rows_per_run, columns, false});
  });
  const Partials<Terms> left = {partials,   run_stride, stride,    outputs,
                                runs.count, columns,    accumulate};
  Blocks second = blocks(1);
  second.blocks.z = Terms::kOutputs;
  bool all_fours = true;
  for (const float* output : outputs.data) all_fours = all_fours && InFours(columns, output);
  Choose(all_fours, [&](auto kFours) {
    LaunchKernel(SumPartialsKernel<decltype(kFours)::value, Terms>, second, context.stream, left);
  });
}

}  // namespace

void Launch(const BiasGrad& op, const LaunchContext& context) {
  From(op.d_output, [&]<class D>(const D* d) {
    SumColumns(BiasTerms<D>{d, op.columns}, op.rows, op.columns, InFours(op.columns, d),
               {{op.d_bias}}, op.accumulate, context);
  });
}

void Launch(const LayerNormBackwardWeights& op, const LaunchContext& context) {
  From(op.d_output, [&]<class D>(const D* d) {
    SumColumns(LayerNormTerms<D>{d, op.x, op.mean, op.rstd}, op.rows, op.columns,
               InFours(op.columns, d, op.x), {{op.d_weight, op.d_bias}}, op.accumulate, context);
  });
}

void Launch(const RmsNormBackwardWeights& op, const LaunchContext& context) {
  From(op.d_output, [&]<class D>(const D* d) {
    SumColumns(RmsNormTerms<D>{d, op.x, op.rstd}, op.rows, op.columns, InFours(op.columns, d, op.x),
               {{op.d_weight}}, op.accumulate, context);
  });
}

}  // namespace takt::backend::cuda
