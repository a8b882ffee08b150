// SPDX-License-Identifier: Apache-2.0
// Computes the gradient of a norm's input together with everything that is summed over the same
// rows: the gradients of the norm's weights and of biases beside it. A block of threads has a run
// of rows and goes through it row by row. Each thread keeps the sums of its columns in registers.
// Further blocks then add up the runs (partial_sums.cuh).
#include "worker/backend/cuda/kernels/device.cuh"
#include "worker/backend/cuda/kernels/kernels.h"
#include "worker/backend/cuda/kernels/norm_backward.cuh"
#include "worker/backend/cuda/kernels/partial_sums.cuh"
#include "worker/backend/cuda/kernels/scratch.cuh"
#include "worker/backend/cuda/kernels/two_stages.cuh"

namespace takt::backend::cuda {
namespace {

constexpr int kThreads = kSumThreads;
constexpr int kColumnsAtOnce = kThreads * 4;
constexpr int kMostGroups = 8;  // of four columns, of a thread
static_assert(kMostSummedColumns == kMostGroups * kColumnsAtOnce);

struct NormShared {
  SumShared sums;
  float of_row[kThreads / kWarpSize];
  unsigned block;
};

__device__ inline float SumOf(const Four& x) { return (x.v[0] + x.v[1]) + (x.v[2] + x.v[3]); }

// With h = (x - mean) rstd and g = d_output * weight, d_x is rstd (g - mean(g) - h mean(g h)).
// RmsNorm is not centred, so it has neither of the two means. kGroups: of a thread, so many reach
// all columns. kOutputs: the sums, in the order of LayerNormSums and RmsNormSums. S: the type
// of what belongs to the residual stream. shared: a number for each warp.
template <int kGroups, int kOutputs, bool kFours, class Op, class D, class S>
__device__ inline void BackwardOfRun(const Op& op, const D* d_output, const RowRuns& runs,
                                     std::int64_t run, const PartialSums& partials, float* shared) {
  constexpr bool kCentred = std::is_same_v<Op, LayerNormBackwardInput>;
  const std::int64_t columns = op.columns;
  const auto width = static_cast<float>(columns);
  const auto column = [](int group) {
    return std::int64_t{group} * kColumnsAtOnce + static_cast<int>(threadIdx.x) * 4;
  };
  Four sums[kOutputs][kGroups] = {};
  const std::int64_t end = runs.end(run);
  for (std::int64_t row = run * runs.rows_per_run; row < end; ++row) {
    const std::int64_t begin = row * columns;
    const float rstd = op.rstd[row];
    float mean = 0;
    if constexpr (kCentred) mean = op.mean[row];
    Four g[kGroups] = {}, h[kGroups] = {};
    float g_sum = 0, gh_sum = 0;
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      const std::int64_t i = column(j);
      if (i >= columns) continue;
      const Four d = Load<kFours>(d_output + begin, i, columns),
                 weight = Load<kFours>(op.weight, i, columns),
                 x = Load<kFours>(As<S>(op.x) + begin, i, columns);
      g[j] = Each([&](int k) { return d.v[k] * weight.v[k]; });
      h[j] = Each([&](int k) { return (x.v[k] - mean) * rstd; });
      if constexpr (kCentred) g_sum += SumOf(g[j]);
      gh_sum += SumOf(Each([&](int k) { return g[j].v[k] * h[j].v[k]; }));
      sums[0][j] = Added(sums[0][j], Each([&](int k) { return d.v[k] * h[j].v[k]; }));
      if constexpr (kCentred) sums[1][j] = Added(sums[1][j], d);
    }
    const float g_mean = kCentred ? TeamSum<kThreads>(g_sum, shared) / width : 0;
    const float gh_mean = TeamSum<kThreads>(gh_sum, shared) / width;
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      const std::int64_t i = column(j);
      if (i >= columns) continue;
      Four residual = {};
      if (As<S>(op.residual_gradient) != nullptr)
        residual = Load<kFours>(As<S>(op.residual_gradient) + begin, i, columns);
      const Four d_input = Each(
          [&](int k) { return rstd * (g[j].v[k] - g_mean - h[j].v[k] * gh_mean) + residual.v[k]; });
      Store<kFours>(As<S>(op.d_input) + begin, i, columns, d_input);
      if (op.rounded != nullptr) Store<kFours>(op.rounded + begin, i, columns, d_input);
      if constexpr (kOutputs == 4) {
        sums[2][j] = Added(sums[2][j], residual);
        sums[3][j] =
            Added(sums[3][j], Each([&](int k) { return Widened(Stored<S>(d_input.v[k])); }));
      }
    }
  }
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
    if (column(j) >= columns) continue;
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) StorePartial(partials, run, o, column(j), sums[o][j]);
  }
}

template <int kGroups, int kOutputs, bool kFours, class Op, class D, class S>
__global__ __launch_bounds__(kThreads) void NormBackwardKernel(Op op, const D* d_output,
                                                               RowRuns runs, PartialSums sums,
                                                               TwoStages stages) {
  auto& shared = Shared<NormShared>();
  const unsigned block = StartBlock(stages, &shared.block);
  if (block < stages.first) {
    BackwardOfRun<kGroups, kOutputs, kFours, Op, D, S>(op, d_output, runs, block, sums,
                                                       shared.of_row);
    EndFirstStage(stages);
  } else {
    WaitForFirstStage(stages);
    AddPartials(sums, block - stages.first, shared.sums);
  }
}

// Calls f with the fewest groups as a type.
template <class F>
void ForGroups(std::int64_t columns, const F& f) {
  if (columns <= kColumnsAtOnce) return f(std::integral_constant<int, 1>());
  if (columns <= 2 * kColumnsAtOnce) return f(std::integral_constant<int, 2>());
  if (columns <= 4 * kColumnsAtOnce) return f(std::integral_constant<int, 4>());
  f(std::integral_constant<int, kMostGroups>());
}

template <int kOutputs, class Op>
void LaunchBoth(const Op& op, float* const (&outputs)[kOutputs], const LaunchContext& context) {
  const RowRuns runs(op.rows);
  const PartialSums sums =
      PartialSumsOf(outputs, runs.count, op.columns, op.sums.accumulate, context);
  const TwoStages stages = {.counts = context.block_counts,
                            .first = static_cast<unsigned>(runs.count),
                            .second = sums.blocks()};
  const Blocks blocks = stages.Launched(kThreads, sizeof(NormShared));
  From(op.d_output, [&]<class D>(const D* d) {
    To(op.d_input, [&]<class S>(S* d_input) {
      const bool fours = InFours(op.columns, d, As<S>(op.x), op.weight, As<S>(op.residual_gradient),
                                 d_input, op.rounded);
      Choose(fours, [&](auto kFours) {
        ForGroups(op.columns, [&](auto groups) {
          LaunchKernel(NormBackwardKernel<decltype(groups)::value, kOutputs,
                                          decltype(kFours)::value, Op, D, S>,
                       blocks, context.stream, op, d, runs, sums, stages);
        });
      });
    });
  });
}

}  // namespace

void LaunchWithSums(const LayerNormBackwardInput& op, const LaunchContext& context) {
  const LayerNormSums& s = op.sums;
  if (s.of_d_input == nullptr) return LaunchBoth<2>(op, {s.d_weight, s.d_bias}, context);
  LaunchBoth<4>(op, {s.d_weight, s.d_bias, s.of_residual_gradient, s.of_d_input}, context);
}

void LaunchWithSums(const RmsNormBackwardInput& op, const LaunchContext& context) {
  LaunchBoth<1>(op, {op.sums.d_weight}, context);
}

}  // namespace takt::backend::cuda
