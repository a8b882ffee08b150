// SPDX-License-Identifier: Apache-2.0
// Sums that end in one number in double: cross-entropy (with its gradient) and sums of squares.
#include <cfloat>

#include "worker/backend/cuda/kernels/device.cuh"
#include "worker/backend/cuda/kernels/kernels.h"
#include "worker/backend/cuda/kernels/scratch.cuh"
#include "worker/backend/cuda/kernels/two_stages.cuh"

namespace takt::backend::cuda {
namespace {

constexpr int kThreads = 256;

// The second stages below read `values` of the first stage of the same launch.

// Computes values[0] + values[1] + ... One thread adds and the others load for it, about 5 ns a
// value.
constexpr int kFed = 256;
struct InOrderShared {
  double values[kFed];
};
__device__ inline void SumInOrder(const double* values, std::int64_t count, double* result,
                                  InOrderShared& shared) {
  double sum = 0;
  for (std::int64_t begin = 0; begin < count; begin += kFed) {
    const auto n = static_cast<int>(count - begin < kFed ? count - begin : kFed);
    for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads)
      shared.values[i] = LoadPastL1(values + begin + i);
    __syncthreads();
    if (threadIdx.x == 0) {
#pragma unroll 8
      for (int i = 0; i < n; ++i) sum += shared.values[i];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) *result = sum;
}

// Computes the sum of values along a tree: thread t adds values t, t + kThreads, ..., and the sums
// of the threads are added by pairs.
struct TreeShared {
  double sums[kThreads / kWarpSize];
};
__device__ inline void SumAlongTree(const double* values, std::int64_t count, double* result,
                                    TreeShared& shared) {
  double sum = 0;
#pragma unroll 8
  for (std::int64_t i = threadIdx.x; i < count; i += kThreads) sum += LoadPastL1(values + i);
  sum = TeamSum<kThreads>(sum, shared.sums);
  if (threadIdx.x == 0) *result = sum;
}

// Each block of the first stage has kSquaresPerBlock elements. The sums of its threads are added
// along a tree.
struct SquaresShared {
  TreeShared of_block;
  InOrderShared of_all;
  unsigned block;
};
template <bool kFours>
__device__ inline void SumBlock(const float* input, std::int64_t count, unsigned block,
                                double* block_sums, TreeShared& shared) {
  const std::int64_t begin = block * kSquaresPerBlock + threadIdx.x * 4;
  double sum = 0;
#pragma unroll
  for (int group = 0; group < kSquaresPerBlock / (kThreads * 4); ++group) {
    const std::int64_t i = begin + group * kThreads * 4;
    if (i >= count) break;
    const Four x = Load<kFours>(input, i, count);
#pragma unroll
    for (int k = 0; k < 4; ++k) sum += static_cast<double>(x.v[k]) * static_cast<double>(x.v[k]);
  }
  sum = TeamSum<kThreads>(sum, shared.sums);
  if (threadIdx.x == 0) block_sums[block] = sum;
}

// The second stage is one block, or none.
template <bool kFours>
__global__ __launch_bounds__(kThreads) void SumOfSquaresKernel(const float* input,
                                                               std::int64_t count,
                                                               double* block_sums, double* result,
                                                               TwoStages stages) {
  auto& shared = Shared<SquaresShared>();
  const unsigned block = StartBlock(stages, &shared.block);
  if (block < stages.first) {
    SumBlock<kFours>(input, count, block, block_sums, shared.of_block);
    EndFirstStage(stages);
  } else {
    WaitForFirstStage(stages);
    SumInOrder(block_sums, stages.first, result, shared.of_all);
  }
}

// The largest of some elements, and the sum of e^(x - largest). Both are NaN where an element is.
struct Softmax {
  float max = -FLT_MAX;
  float sum = 0;
};
__device__ inline Softmax Joined(const Softmax& a, const Softmax& b) {
  const float max = fmaxf(a.max, b.max);
  return {max, a.sum * expf(a.max - max) + b.sum * expf(b.max - max)};
}
__device__ inline Softmax WarpJoined(Softmax s) {
#pragma unroll
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    const Softmax other = {__shfl_xor_sync(kAllLanes, s.max, distance),
                           __shfl_xor_sync(kAllLanes, s.sum, distance)};
    s = Joined(s, other);
  }
  return s;
}

// A block of threads has a row of a block of columns, and goes through it once. The running maximum
// saves a second reading (Milakov & Gimelshein 2018).
constexpr int kRowThreads = 512;
struct SoftmaxShared {
  double logits[kRowThreads / kWarpSize];
  float max[kRowThreads / kWarpSize];
  float sum[kRowThreads / kWarpSize];
};

template <bool kAligned, class T>
__device__ inline Softmax SoftmaxOfRow(const T* logits, std::int64_t columns, std::int64_t stride) {
  constexpr int kCount = kIn16Bytes<T>;
  Softmax softmax;
  for (std::int64_t i = threadIdx.x * kCount; i < columns; i += kRowThreads * kCount) {
    const auto x = Load<kAligned, kCount>(logits, i, stride);
    Softmax group;
    // The padding behind the columns must not count.
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      group.max = fmaxf(group.max, i + k < columns ? x.v[k] : -FLT_MAX);
    }
    const float max = fmaxf(softmax.max, group.max);
#pragma unroll
    for (int k = 0; k < kCount; ++k) group.sum += i + k < columns ? expf(x.v[k] - max) : 0;
    softmax = {max, softmax.sum * expf(softmax.max - max) + group.sum};
  }
  softmax = WarpJoined(softmax);
  auto& shared = Shared<SoftmaxShared>();
  if (threadIdx.x % kWarpSize == 0) {
    shared.max[threadIdx.x / kWarpSize] = softmax.max;
    shared.sum[threadIdx.x / kWarpSize] = softmax.sum;
  }
  __syncthreads();
  softmax = {shared.max[0], shared.sum[0]};
  for (int warp = 1; warp < kRowThreads / kWarpSize; ++warp) {
    softmax = Joined(softmax, {shared.max[warp], shared.sum[warp]});
  }
  return softmax;
}

// Returns the sum of the logits of a row, to every thread.
template <bool kAligned, class T>
__device__ inline double SumOfRow(const T* logits, std::int64_t columns, std::int64_t stride) {
  constexpr int kCount = kIn16Bytes<T>;
  double sum = 0;
  for (std::int64_t i = threadIdx.x * kCount; i < columns; i += kRowThreads * kCount) {
    const auto x = Load<kAligned, kCount>(logits, i, stride);
#pragma unroll
    for (int k = 0; k < kCount; ++k) sum += i + k < columns ? static_cast<double>(x.v[k]) : 0.0;
  }
  return TeamSum<kRowThreads>(sum, Shared<SoftmaxShared>().logits);
}

template <bool kAligned, class T>
__global__ __launch_bounds__(kRowThreads) void SoftmaxBlockKernel(SoftmaxBlock op, const T* all,
                                                                  std::int64_t stride) {
  const std::int64_t row = blockIdx.x;
  const T* logits = all + row * stride;
  SoftmaxPart part = {0, 0, 0};
  if (op.targets[row] != kIgnoredTarget) {
    const Softmax softmax = SoftmaxOfRow<kAligned>(logits, op.columns, stride);
    const std::int64_t target = op.targets[row] - op.first;
    const bool here = target >= 0 && target < op.columns;
    double logit =
        here ? static_cast<double>(op.shares.target) * static_cast<double>(Widened(logits[target]))
             : 0.0;
    if (op.shares.each != 0)
      logit += static_cast<double>(op.shares.each) * SumOfRow<kAligned>(logits, op.columns, stride);
    part = {static_cast<double>(softmax.sum), softmax.max, static_cast<float>(logit)};
  }
  if (threadIdx.x == 0) op.parts[row] = part;
}

__device__ inline void LossOfRow(const CrossEntropy& op, std::int64_t row, double* row_losses) {
  const SoftmaxPart* parts = op.parts + row;
  const std::int64_t stride = op.parts_stride == 0 ? op.rows : op.parts_stride;
  SoftmaxRow softmax = {0, 0, 0};
  double loss = 0;
  if (op.targets[row] != kIgnoredTarget) {
    float max = parts->max;
    for (std::int64_t b = 1; b < op.blocks; ++b) max = fmaxf(max, parts[b * stride].max);
    double sum = 0, target_logit = 0;
    for (std::int64_t b = 0; b < op.blocks; ++b) {
      const SoftmaxPart& part = parts[b * stride];
      sum += part.sum * exp(static_cast<double>(part.max) - static_cast<double>(max));
      target_logit += static_cast<double>(part.target_logit);
    }
    const double z = log(sum) + static_cast<double>(max);
    loss = z - target_logit;
    softmax = {static_cast<double>(op.scale) / sum, max, op.scale};
    if (op.z_loss != 0) {
      loss += op.z_loss * z * z;
      softmax.factor *= 1 + 2 * op.z_loss * z;
    }
  }
  op.softmax[row] = softmax;
  row_losses[row] = loss;
}

struct LossShared {
  TreeShared of_all;
  unsigned block;
};

// Each thread of the first stage has a row. The second stage is one block, or none if nobody asks
// for the loss.
__global__ __launch_bounds__(kThreads) void CrossEntropyKernel(CrossEntropy op, double* row_losses,
                                                               TwoStages stages) {
  auto& shared = Shared<LossShared>();
  const unsigned block = StartBlock(stages, &shared.block);
  if (block < stages.first) {
    const std::int64_t row = static_cast<std::int64_t>(block) * kThreads + threadIdx.x;
    if (row < op.rows) LossOfRow(op, row, row_losses);
    EndFirstStage(stages);
  } else {
    WaitForFirstStage(stages);
    SumAlongTree(row_losses, op.rows, op.loss_sum, shared.of_all);
  }
}

// A block of threads has a row of a block of columns.
template <bool kAligned, class T>
__global__ __launch_bounds__(kRowThreads) void CrossEntropyGradientKernel(CrossEntropyGradient op,
                                                                          T* all,
                                                                          std::int64_t stride) {
  constexpr int kCount = kIn16Bytes<T>;
  const std::int64_t row = blockIdx.x, columns = op.columns;
  T* logits = all + row * stride;
  const bool scored = op.targets[row] != kIgnoredTarget;
  const std::int64_t target = op.targets[row] - op.first;
  const SoftmaxRow softmax = op.softmax[row];
  const float max = op.parts[row].max;
  // Every thread computes the same bits.
  const auto factor = static_cast<float>(
      softmax.factor * exp(static_cast<double>(max) - static_cast<double>(softmax.max)));
  const float each = softmax.scale * op.shares.each, of_target = softmax.scale * op.shares.target;
  for (std::int64_t i = threadIdx.x * kCount; i < stride; i += kRowThreads * kCount) {
    Numbers<kCount> d = {};
    if (scored) {
      const auto x = Load<kAligned, kCount>(logits, i, stride);
      d = Each<kCount>([&](int k) {
        // In the order of the CPU: what the target has beside the others is taken off last.
        const float shared = factor * expf(x.v[k] - max) - each;
        const float own = i + k == target ? of_target : 0.0F;
        return i + k < columns ? shared - own : 0.0F;
      });
    }
    Store<kAligned>(logits, i, stride, d);
  }
}

}  // namespace

void Launch(const SumOfSquares& op, const LaunchContext& context) {
  const bool by_block = op.block_sums != nullptr;
  auto* block_sums = by_block ? op.block_sums : static_cast<double*>(context.scratch);
  const TwoStages stages = {.counts = context.block_counts,
                            .first = static_cast<unsigned>(CeilDiv(op.count, kSquaresPerBlock)),
                            .second = by_block ? 0U : 1U};
  if (stages.first + stages.second == 0) return;
  Choose(InFours(op.count, op.input), [&](auto kFours) {
    LaunchKernel(SumOfSquaresKernel<decltype(kFours)::value>,
                 stages.Launched(kThreads, sizeof(SquaresShared)), context.stream, op.input,
                 op.count, block_sums, op.result, stages);
  });
}

void Launch(const SoftmaxBlock& op, const LaunchContext& context) {
  const std::int64_t stride = op.stride == 0 ? op.columns : op.stride;
  const Blocks blocks = {{static_cast<unsigned>(op.rows)}, kRowThreads, sizeof(SoftmaxShared)};
  From(op.logits, [&]<class T>(const T* logits) {
    Choose(InGroups<kIn16Bytes<T>>(stride, logits), [&](auto aligned) {
      LaunchKernel(SoftmaxBlockKernel<decltype(aligned)::value, T>, blocks, context.stream, op,
                   logits, stride);
    });
  });
}

void Launch(const CrossEntropy& op, const LaunchContext& context) {
  const TwoStages stages = {.counts = context.block_counts,
                            .first = static_cast<unsigned>(CeilDiv(op.rows, kThreads)),
                            .second = op.loss_sum == nullptr ? 0U : 1U};
  LaunchKernel(CrossEntropyKernel, stages.Launched(kThreads, sizeof(LossShared)), context.stream,
               op, static_cast<double*>(context.scratch), stages);
}

void Launch(const CrossEntropyGradient& op, const LaunchContext& context) {
  const std::int64_t stride = op.stride == 0 ? op.columns : op.stride;
  const Blocks blocks = {{static_cast<unsigned>(op.rows)}, kRowThreads, 0};
  To(op.logits, [&]<class T>(T* logits) {
    Choose(InGroups<kIn16Bytes<T>>(stride, logits), [&](auto aligned) {
      LaunchKernel(CrossEntropyGradientKernel<decltype(aligned)::value, T>, blocks, context.stream,
                   op, logits, stride);
    });
  });
}

}  // namespace takt::backend::cuda
