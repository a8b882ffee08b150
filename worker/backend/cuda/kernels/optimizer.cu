// SPDX-License-Identifier: Apache-2.0
// AdamW over a list of tensors: 28 bytes of memory an element, few launches.
#include <cmath>

#include "worker/backend/cuda/kernels/device.cuh"
#include "worker/backend/cuda/kernels/kernels.h"

namespace takt::backend::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kGroups = 4;  // of four elements, of a thread
constexpr std::int64_t kElementsPerBlock = kThreads * kGroups * 4;

struct AdamwTensor {
  float* parameter;
  const float* previous;
  const float* gradient;
  float* m;
  float* v;
  std::int64_t count;
  float scale, beta1, rest1, beta2, rest2, rate, v_scale, epsilon, decay;
  bool moves;  // else every bit stays, also the sign of a zero
  bool fours;
  unsigned first_block;
};

// All that a launch reads but the tensors themselves: a kernel takes 4 KB by value.
struct AdamwList {
  static constexpr int kMost = 36;
  AdamwTensor tensors[kMost];
  int count;
};
static_assert(sizeof(AdamwList) <= 4096);

template <bool kFours>
__device__ inline void UpdateGroup(const AdamwTensor& t, std::int64_t i) {
  Four g = Load<kFours>(t.gradient, i, t.count), m = Load<kFours>(t.m, i, t.count),
       v = Load<kFours>(t.v, i, t.count), p = Load<kFours>(t.previous, i, t.count);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    g.v[k] *= t.scale;
    m.v[k] = m.v[k] * t.beta1 + g.v[k] * t.rest1;
    v.v[k] = v.v[k] * t.beta2 + g.v[k] * g.v[k] * t.rest2;
    // p (1 - lr wd) - update: rounding 1 - lr wd to a float would change the decay.
    const float moved =
        p.v[k] - (p.v[k] * t.decay + t.rate * m.v[k] / (sqrtf(v.v[k] * t.v_scale) + t.epsilon));
    if (t.moves) p.v[k] = moved;
  }
  Store<kFours>(t.m, i, t.count, m);
  Store<kFours>(t.v, i, t.count, v);
  Store<kFours>(t.parameter, i, t.count, p);
}

__global__ __launch_bounds__(kThreads) void AdamwKernel(AdamwList list) {
  int index = 0;
  while (index + 1 < list.count && list.tensors[index + 1].first_block <= blockIdx.x) ++index;
  const AdamwTensor& t = list.tensors[index];
  const std::int64_t begin =
      (blockIdx.x - t.first_block) * kElementsPerBlock + static_cast<int>(threadIdx.x) * 4;
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    const std::int64_t i = begin + group * kThreads * 4;
    if (i >= t.count) break;
    t.fours ? UpdateGroup<true>(t, i) : UpdateGroup<false>(t, i);
  }
}

AdamwTensor TensorOf(const AdamwUpdate& op, unsigned first_block) {
  const auto step = static_cast<double>(op.step);
  const float* previous = op.previous != nullptr ? op.previous : op.parameter;
  return {
      .parameter = op.parameter,
      .previous = previous,
      .gradient = op.gradient,
      .m = op.m,
      .v = op.v,
      .count = op.count,
      .scale = static_cast<float>(op.gradient_scale),
      .beta1 = static_cast<float>(op.beta1),
      .rest1 = static_cast<float>(1 - op.beta1),
      .beta2 = static_cast<float>(op.beta2),
      .rest2 = static_cast<float>(1 - op.beta2),
      .rate = static_cast<float>(op.learning_rate / (1 - std::pow(op.beta1, step))),
      .v_scale = static_cast<float>(1 / (1 - std::pow(op.beta2, step))),
      .epsilon = static_cast<float>(op.epsilon),
      .decay = static_cast<float>(op.learning_rate * op.weight_decay),
      .moves = op.learning_rate != 0,
      .fours = InFours(op.count, op.parameter, previous, op.gradient, op.m, op.v),
      .first_block = first_block,
  };
}

}  // namespace

void Launch(std::span<const AdamwUpdate> ops, const LaunchContext& context) {
  AdamwList list{};
  unsigned blocks = 0;
  const auto flush = [&] {
    if (list.count == 0) return;
    LaunchKernel(AdamwKernel, Blocks{{blocks}, kThreads}, context.stream, list);
    list.count = 0;
    blocks = 0;
  };
  for (const AdamwUpdate& op : ops) {
    if (op.count == 0) continue;
    list.tensors[list.count++] = TensorOf(op, blocks);
    blocks += static_cast<unsigned>(CeilDiv(op.count, kElementsPerBlock));
    if (list.count == AdamwList::kMost) flush();
  }
  flush();
}

void Launch(const AdamwUpdate& op, const LaunchContext& context) {
  Launch(std::span(&op, 1), context);
}

}  // namespace takt::backend::cuda
