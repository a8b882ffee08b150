// SPDX-License-Identifier: Apache-2.0
// Norms along rows: the forward, and the gradient of the input. A team of threads has a row: a warp
// if the row is short, else a block. It reads a row two or three times; every reading but the first
// finds it in the L1 or L2 cache. A backward that also sums over rows is in norm_backward.cu.
#include "worker/backend/cuda/kernels/device.cuh"
#include "worker/backend/cuda/kernels/kernels.h"
#include "worker/backend/cuda/kernels/norm_backward.cuh"

namespace takt::backend::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kColumnsOfAWarp = 1024;  // part of what defines the result

struct NormShared {
  float sums[kThreads / kWarpSize];
};

// The row of this thread's team, and the thread's groups of four in it.
template <int kTeam>
struct Team {
  __device__ static std::int64_t Row() {
    return static_cast<std::int64_t>(blockIdx.x) * (kThreads / kTeam) + threadIdx.x / kTeam;
  }
  // Calls f(i) for each group's first column.
  template <class F>
  __device__ static void ForGroups(std::int64_t columns, const F& f) {
    for (std::int64_t i = threadIdx.x % kTeam * 4; i < columns; i += kTeam * 4) f(i);
  }
  __device__ static bool First() { return threadIdx.x % kTeam == 0; }
  __device__ static float Sum(float value) {
    return TeamSum<kTeam>(value, Shared<NormShared>().sums);
  }
};

// Calls launch(team, fours, blocks) with the first two as types.
template <class F>
void ForTeams(std::int64_t rows, std::int64_t columns, bool fours, const F& launch) {
  Choose(columns <= kColumnsOfAWarp, [&](auto warp) {
    constexpr int kTeam = decltype(warp)::value ? kWarpSize : kThreads;
    const Blocks blocks = {
        {static_cast<unsigned>(CeilDiv(rows, kThreads / kTeam))}, kThreads, sizeof(NormShared)};
    Choose(fours, [&](auto kFours) { launch(Team<kTeam>(), kFours, blocks); });
  });
}

__device__ inline float SumOf(const Four& x) { return (x.v[0] + x.v[1]) + (x.v[2] + x.v[3]); }

template <class T, bool kFours, class InputType, class OutputType>
__global__ __launch_bounds__(kThreads) void LayerNormForwardKernel(LayerNormForward op,
                                                                   const InputType* input,
                                                                   OutputType* output) {
  const std::int64_t row = T::Row(), columns = op.columns, begin = row * columns;
  if (row >= op.rows) return;  // a whole warp returns, so no barrier is missed
  float sum = 0;
  T::ForGroups(columns,
               [&](std::int64_t i) { sum += SumOf(Load<kFours>(input + begin, i, columns)); });
  const float mean = T::Sum(sum) / static_cast<float>(columns);
  float squares = 0;
  T::ForGroups(columns, [&](std::int64_t i) {
    const Four x = Load<kFours>(input + begin, i, columns);
    squares += SumOf(Each([&](int k) {
      const float d = i + k < columns ? x.v[k] - mean : 0;
      return d * d;
    }));
  });
  const float variance = T::Sum(squares) / static_cast<float>(columns);
  const float rstd = 1.0F / sqrtf(variance + op.epsilon);
  if (T::First()) {
    op.mean[row] = mean;
    op.rstd[row] = rstd;
  }
  T::ForGroups(columns, [&](std::int64_t i) {
    const Four x = Load<kFours>(input + begin, i, columns),
               weight = Load<kFours>(op.weight, i, columns),
               bias = Load<kFours>(op.bias, i, columns);
    Store<kFours>(output + begin, i, columns,
                  Each([&](int k) { return (x.v[k] - mean) * rstd * weight.v[k] + bias.v[k]; }));
  });
}

template <class T, bool kFours, class InputType, class OutputType>
__global__ __launch_bounds__(kThreads) void RmsNormForwardKernel(RmsNormForward op,
                                                                 const InputType* input,
                                                                 OutputType* output) {
  const std::int64_t row = T::Row(), columns = op.columns, begin = row * columns;
  if (row >= op.rows) return;
  float squares = 0;
  T::ForGroups(columns, [&](std::int64_t i) {
    const Four x = Load<kFours>(input + begin, i, columns);
    squares += SumOf(Each([&](int k) { return x.v[k] * x.v[k]; }));
  });
  const float rstd = 1.0F / sqrtf(T::Sum(squares) / static_cast<float>(columns) + op.epsilon);
  if (T::First()) op.rstd[row] = rstd;
  T::ForGroups(columns, [&](std::int64_t i) {
    const Four x = Load<kFours>(input + begin, i, columns),
               weight = Load<kFours>(op.weight, i, columns);
    Store<kFours>(output + begin, i, columns,
                  Each([&](int k) { return x.v[k] * rstd * weight.v[k]; }));
  });
}

// With h = (x - mean) rstd and g = d_output * weight, d_x is rstd (g - mean(g) - h mean(g h)).
// RmsNorm is not centred, so it has neither of the two means. S: the type of what belongs to
// the residual stream.
template <class T, bool kFours, class Op, class D, class S>
__global__ __launch_bounds__(kThreads) void NormBackwardInputKernel(Op op, const D* d_output) {
  constexpr bool kCentred = std::is_same_v<Op, LayerNormBackwardInput>;
  const std::int64_t row = T::Row(), columns = op.columns, begin = row * columns;
  if (row >= op.rows) return;
  const float rstd = op.rstd[row];
  float mean = 0;
  if constexpr (kCentred) mean = op.mean[row];
  float g_sum = 0, gh_sum = 0;
  T::ForGroups(columns, [&](std::int64_t i) {
    const Four d = Load<kFours>(d_output + begin, i, columns),
               weight = Load<kFours>(op.weight, i, columns),
               x = Load<kFours>(As<S>(op.x) + begin, i, columns);
    const Four g = Each([&](int k) { return d.v[k] * weight.v[k]; });
    if constexpr (kCentred) g_sum += SumOf(g);
    gh_sum += SumOf(Each([&](int k) { return g.v[k] * ((x.v[k] - mean) * rstd); }));
  });
  const float g_mean = kCentred ? T::Sum(g_sum) / static_cast<float>(columns) : 0;
  const float gh_mean = T::Sum(gh_sum) / static_cast<float>(columns);
  T::ForGroups(columns, [&](std::int64_t i) {
    const Four d = Load<kFours>(d_output + begin, i, columns),
               weight = Load<kFours>(op.weight, i, columns),
               x = Load<kFours>(As<S>(op.x) + begin, i, columns);
    Four residual = {};
    if (As<S>(op.residual_gradient) != nullptr) {
      residual = Load<kFours>(As<S>(op.residual_gradient) + begin, i, columns);
    }
    const Four d_input = Each([&](int k) {
      const float h = (x.v[k] - mean) * rstd;
      return rstd * (d.v[k] * weight.v[k] - g_mean - h * gh_mean) + residual.v[k];
    });
    Store<kFours>(As<S>(op.d_input) + begin, i, columns, d_input);
    if (op.rounded != nullptr) Store<kFours>(op.rounded + begin, i, columns, d_input);
  });
}

template <class Op>
void LaunchBackwardInput(const Op& op, const LaunchContext& context) {
  From(op.d_output, [&]<class D>(const D* d) {
    To(op.d_input, [&]<class S>(S* d_input) {
      const bool fours = InFours(op.columns, d, As<S>(op.x), op.weight, As<S>(op.residual_gradient),
                                 d_input, op.rounded);
      ForTeams(op.rows, op.columns, fours, [&]<class T>(T, auto kFours, const Blocks& blocks) {
        LaunchKernel(NormBackwardInputKernel<T, decltype(kFours)::value, Op, D, S>, blocks,
                     context.stream, op, d);
      });
    });
  });
}

}  // namespace

void Launch(const LayerNormForward& op, const LaunchContext& context) {
  From(op.input, [&]<class InputType>(const InputType* input) {
    To(op.output, [&]<class OutputType>(OutputType* output) {
      const bool fours = InFours(op.columns, output, input, op.weight, op.bias);
      ForTeams(op.rows, op.columns, fours, [&]<class T>(T, auto kFours, const Blocks& blocks) {
        LaunchKernel(LayerNormForwardKernel<T, decltype(kFours)::value, InputType, OutputType>,
                     blocks, context.stream, op, input, output);
      });
    });
  });
}

void Launch(const RmsNormForward& op, const LaunchContext& context) {
  From(op.input, [&]<class InputType>(const InputType* input) {
    To(op.output, [&]<class OutputType>(OutputType* output) {
      const bool fours = InFours(op.columns, output, input, op.weight);
      ForTeams(op.rows, op.columns, fours, [&]<class T>(T, auto kFours, const Blocks& blocks) {
        LaunchKernel(RmsNormForwardKernel<T, decltype(kFours)::value, InputType, OutputType>,
                     blocks, context.stream, op, input, output);
      });
    });
  });
}

// Sums what d_input may overwrite first.
void Launch(const LayerNormBackwardInput& op, const LaunchContext& context) {
  if (SumsOnTheWay(op.sums.d_weight, op.columns)) return LaunchWithSums(op, context);
  const LayerNormSums& sums = op.sums;
  const auto sum = [&](const Operand& terms, float* into) {
    if (into == nullptr) return;
    Launch(BiasGrad{.d_output = terms,
                    .d_bias = into,
                    .rows = op.rows,
                    .columns = op.columns,
                    .accumulate = sums.accumulate},
           context);
  };
  if (sums.d_weight != nullptr) {
    Launch(LayerNormBackwardWeights{.d_output = op.d_output,
                                    .x = op.x,
                                    .mean = op.mean,
                                    .rstd = op.rstd,
                                    .d_weight = sums.d_weight,
                                    .d_bias = sums.d_bias,
                                    .rows = op.rows,
                                    .columns = op.columns,
                                    .accumulate = sums.accumulate},
           context);
  }
  sum(op.residual_gradient, sums.of_residual_gradient);
  LaunchBackwardInput(op, context);
  sum(op.d_input, sums.of_d_input);
}

void Launch(const RmsNormBackwardInput& op, const LaunchContext& context) {
  if (SumsOnTheWay(op.sums.d_weight, op.columns)) return LaunchWithSums(op, context);
  if (op.sums.d_weight != nullptr) {
    Launch(RmsNormBackwardWeights{.d_output = op.d_output,
                                  .x = op.x,
                                  .rstd = op.rstd,
                                  .d_weight = op.sums.d_weight,
                                  .rows = op.rows,
                                  .columns = op.columns,
                                  .accumulate = op.sums.accumulate},
           context);
  }
  LaunchBackwardInput(op, context);
}

}  // namespace takt::backend::cuda
