// SPDX-License-Identifier: Apache-2.0
// Computes the attention of a few new tokens to a cache. Each query of a head has one warp, which
// goes through the keys one by one with a running maximum and sum.
#include <cmath>

#include "worker/backend/cuda/kernels/device.cuh"
#include "worker/backend/cuda/kernels/kernels.h"

namespace takt::backend::cuda {
namespace {

constexpr int kThreads = 128;
constexpr float kLowest = -3.402823466e+38F;  // e to it is 0, and it makes no NaN

// Puts the keys and values of the block's row into the cache.
__global__ __launch_bounds__(kThreads) void AppendKernel(CachedAttention op) {
  const std::int64_t row = blockIdx.x, columns = op.kv_heads * op.head_size;
  for (std::int64_t i = threadIdx.x; i < columns; i += kThreads) {
    const std::int64_t place = i / op.head_size * op.capacity + op.past + row;
    const std::int64_t to = place * op.head_size + i % op.head_size;
    op.keys[to] = op.k[row * op.kv_stride + i];
    op.values[to] = op.v[row * op.kv_stride + i];
  }
}

// A lane has every 32nd element of the head. The sums of values are in `output`.
__global__ __launch_bounds__(kWarpSize) void CachedAttentionKernel(CachedAttention op,
                                                                   float scale) {
  const std::int64_t row = blockIdx.x / op.heads, head = blockIdx.x % op.heads;
  const std::int64_t size = op.head_size, lane = threadIdx.x;
  const std::int64_t first_place = head / (op.heads / op.kv_heads) * op.capacity;
  const float* q = op.q + row * op.q_stride + head * size;
  float* output = op.output + row * op.out_stride + head * size;
  const std::int64_t end = op.past + row + 1;
  const std::int64_t first = op.window > 0 && op.window < end ? end - op.window : 0;
  for (std::int64_t i = lane; i < size; i += kWarpSize) output[i] = 0;
  float max = kLowest, sum = 0;
  for (std::int64_t t = first; t < end; ++t) {
    const float* key = op.keys + (first_place + t) * size;
    const float* value = op.values + (first_place + t) * size;
    float product = 0;
    for (std::int64_t i = lane; i < size; i += kWarpSize) product += q[i] * key[i];
    const float score = WarpSum(product) * scale;
    const float next_max = fmaxf(max, score);
    const float shrink = expf(max - next_max), weight = expf(score - next_max);
    sum = sum * shrink + weight;
    for (std::int64_t i = lane; i < size; i += kWarpSize)
      output[i] = output[i] * shrink + weight * value[i];
    max = next_max;
  }
  for (std::int64_t i = lane; i < size; i += kWarpSize) output[i] /= sum;
}

}  // namespace

void Launch(const CachedAttention& op, const LaunchContext& context) {
  LaunchKernel(AppendKernel, Blocks{{static_cast<unsigned>(op.rows)}, kThreads}, context.stream,
               op);
  const float scale = 1 / std::sqrt(static_cast<float>(op.head_size));
  LaunchKernel(CachedAttentionKernel,
               Blocks{{static_cast<unsigned>(op.rows * op.heads)}, kWarpSize}, context.stream, op,
               scale);
}

}  // namespace takt::backend::cuda
