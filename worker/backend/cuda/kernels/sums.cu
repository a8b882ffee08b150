// SPDX-License-Identifier: Apache-2.0
// Sums that end in one number in double: cross-entropy (with its gradient) and sums of squares.
#include <cfloat>

#include "worker/backend/cuda/kernels/device.cuh"
#include "worker/backend/cuda/kernels/kernels.h"
#include "worker/backend/cuda/kernels/scratch.cuh"

namespace takt::backend::cuda {
namespace {

constexpr int kThreads = 256;

// result = values[0] + values[1] + ..., by one thread, which the others feed: about 5 ns a value.
constexpr int kFed = 256;
struct InOrderShared {
  double values[kFed];
};
__global__ __launch_bounds__(kThreads) void SumInOrderKernel(const double* values,
                                                             std::int64_t count, double* result) {
  double* fed = Shared<InOrderShared>().values;
  double sum = 0;
  for (std::int64_t begin = 0; begin < count; begin += kFed) {
    const auto n = static_cast<int>(count - begin < kFed ? count - begin : kFed);
    for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) fed[i] = values[begin + i];
    __syncthreads();
    if (threadIdx.x == 0) {
#pragma unroll 8
      for (int i = 0; i < n; ++i) sum += fed[i];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) *result = sum;
}

void SumInOrder(const double* values, std::int64_t count, double* result,
                const LaunchContext& context) {
  LaunchKernel(SumInOrderKernel, Blocks{{1}, kThreads, sizeof(InOrderShared)}, context.stream,
               values, count, result);
}

// A block has kSquaresPerBlock elements; the sums of its threads are added along a tree.
struct SquaresShared {
  double sums[kThreads / kWarpSize];
};
template <bool kFours>
__global__ __launch_bounds__(kThreads) void SumOfSquaresKernel(const float* input,
                                                               std::int64_t count,
                                                               double* block_sums) {
  const std::int64_t begin = blockIdx.x * kSquaresPerBlock + threadIdx.x * 4;
  double sum = 0;
#pragma unroll
  for (int group = 0; group < kSquaresPerBlock / (kThreads * 4); ++group) {
    const std::int64_t i = begin + group * kThreads * 4;
    if (i >= count) break;
    const Four x = Load<kFours>(input, i, count);
#pragma unroll
    for (int k = 0; k < 4; ++k) sum += static_cast<double>(x.v[k]) * static_cast<double>(x.v[k]);
  }
  sum = TeamSum<kThreads>(sum, Shared<SquaresShared>().sums);
  if (threadIdx.x == 0) block_sums[blockIdx.x] = sum;
}

// Of some elements: the largest, and the sum of e^(x - largest). NaN where there is one.
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

// A block has a row, and reads it twice if it leaves the gradient: rows fit the L2 cache (200 kB at
// a vocabulary of 50,000; those of all blocks that run at once, 50 MB). The running maximum spares
// a third time (Milakov & Gimelshein 2018).
constexpr int kRowThreads = 512;
struct CrossEntropyShared {
  float max[kRowThreads / kWarpSize];
  float sum[kRowThreads / kWarpSize];
};

template <bool kFours>
__device__ inline Softmax SoftmaxOfRow(const float* logits, std::int64_t vocab) {
  Softmax softmax;
  for (std::int64_t i = threadIdx.x * 4; i < vocab; i += kRowThreads * 4) {
    const Four x = Load<kFours>(logits, i, vocab);
    Softmax group;
    // What is beyond the row's end must not count.
#pragma unroll
    for (int k = 0; k < 4; ++k) group.max = fmaxf(group.max, i + k < vocab ? x.v[k] : -FLT_MAX);
    const float max = fmaxf(softmax.max, group.max);
#pragma unroll
    for (int k = 0; k < 4; ++k) group.sum += i + k < vocab ? expf(x.v[k] - max) : 0;
    softmax = {max, softmax.sum * expf(softmax.max - max) + group.sum};
  }
  softmax = WarpJoined(softmax);
  auto& shared = Shared<CrossEntropyShared>();
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

template <bool kFours>
__global__ __launch_bounds__(kRowThreads) void CrossEntropyKernel(CrossEntropy op,
                                                                  double* row_losses) {
  const std::int64_t row = blockIdx.x, vocab = op.vocab;
  float* logits = op.logits.f32 + row * vocab;
  const std::int32_t target = op.targets[row];
  const bool scored = target != kIgnoredTarget;
  Softmax softmax;
  if (scored) {
    softmax = SoftmaxOfRow<kFours>(logits, vocab);
    if (threadIdx.x == 0) {
      row_losses[row] = log(static_cast<double>(softmax.sum)) + static_cast<double>(softmax.max) -
                        static_cast<double>(logits[target]);
    }
  } else if (threadIdx.x == 0) {
    row_losses[row] = 0;
  }
  if (!op.gradient) return;
  __syncthreads();  // thread 0 has read the target's logit
  const float factor = scored ? op.scale / softmax.sum : 0;
  for (std::int64_t i = threadIdx.x * 4; i < vocab; i += kRowThreads * 4) {
    Four d = {};
    if (scored) {
      const Four x = Load<kFours>(logits, i, vocab);
      d = Each([&](int k) {
        return factor * expf(x.v[k] - softmax.max) - (i + k == target ? op.scale : 0.0F);
      });
    }
    Store<kFours>(logits, i, vocab, d);
  }
}

}  // namespace

void Launch(const SumOfSquares& op, const LaunchContext& context) {
  auto* block_sums = static_cast<double*>(context.scratch);
  const std::int64_t blocks = CeilDiv(op.count, kSquaresPerBlock);
  if (blocks > 0) {
    Choose(InFours(op.count, op.input), [&](auto kFours) {
      LaunchKernel(SumOfSquaresKernel<decltype(kFours)::value>,
                   Blocks{{static_cast<unsigned>(blocks)}, kThreads, sizeof(SquaresShared)},
                   context.stream, op.input, op.count, block_sums);
    });
  }
  SumInOrder(block_sums, blocks, op.result, context);
}

void Launch(const CrossEntropy& op, const LaunchContext& context) {
  auto* row_losses = static_cast<double*>(context.scratch);
  Choose(InFours(op.vocab, op.logits.f32), [&](auto kFours) {
    LaunchKernel(CrossEntropyKernel<decltype(kFours)::value>,
                 Blocks{{static_cast<unsigned>(op.rows)}, kRowThreads, sizeof(CrossEntropyShared)},
                 context.stream, op, row_losses);
  });
  SumInOrder(row_losses, op.rows, op.loss_sum, context);
}

}  // namespace takt::backend::cuda
