// SPDX-License-Identifier: Apache-2.0
// Updates a list of tensors by AdamW: it moves 28 bytes of memory an element, in few launches.
#include <cmath>

#include "worker/backend/cuda/kernels/device.cuh"
#include "worker/backend/cuda/kernels/kernels.h"

namespace takt::backend::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kGroups = 4;  // of four elements, of a thread
constexpr std::int64_t kElementsPerBlock = kThreads * kGroups * 4;

struct Rule {
  float scale, beta1, rest1, beta2, rest2, v_scale, epsilon;
};

struct Entry {
  float* parameter;
  const float* previous;
  const float* gradient;
  float* m;
  float* v;
  std::int64_t count;
  float rate, decay;
  unsigned first_block;
  bool moves;  // if not, every bit stays, also the sign of a zero
  bool fours;
};

// Everything that a launch reads beside the tensors themselves. A kernel takes 4 KB by value.
struct AdamwList {
  static constexpr int kMost = 63;
  Rule rule;
  Entry entries[kMost];
  int count;
};
static_assert(sizeof(AdamwList) <= 4096);

template <bool kFours>
__device__ inline void UpdateGroup(const Rule& rule, const Entry& t, std::int64_t i) {
  Four g = Load<kFours>(t.gradient, i, t.count), m = Load<kFours>(t.m, i, t.count),
       v = Load<kFours>(t.v, i, t.count), p = Load<kFours>(t.previous, i, t.count);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    g.v[k] *= rule.scale;
    m.v[k] = m.v[k] * rule.beta1 + g.v[k] * rule.rest1;
    v.v[k] = v.v[k] * rule.beta2 + g.v[k] * g.v[k] * rule.rest2;
    // p (1 - lr wd) - update, in a form that does not round 1 - lr wd to a float: that would change
    // the decay.
    const float update = t.rate * m.v[k] / (sqrtf(v.v[k] * rule.v_scale) + rule.epsilon);
    const float moved = p.v[k] - (p.v[k] * t.decay + update);
    if (t.moves) p.v[k] = moved;
  }
  Store<kFours>(t.m, i, t.count, m);
  Store<kFours>(t.v, i, t.count, v);
  Store<kFours>(t.parameter, i, t.count, p);
}

__global__ __launch_bounds__(kThreads) void AdamwKernel(AdamwList list) {
  int index = 0;
  while (index + 1 < list.count && list.entries[index + 1].first_block <= blockIdx.x) ++index;
  const Entry& t = list.entries[index];
  const std::int64_t begin =
      (blockIdx.x - t.first_block) * kElementsPerBlock + static_cast<int>(threadIdx.x) * 4;
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    const std::int64_t i = begin + group * kThreads * 4;
    if (i >= t.count) break;
    t.fours ? UpdateGroup<true>(list.rule, t, i) : UpdateGroup<false>(list.rule, t, i);
  }
}

Rule RuleOf(const AdamwUpdate& op) {
  const auto step = static_cast<double>(op.step);
  return {
      .scale = static_cast<float>(op.gradient_scale),
      .beta1 = static_cast<float>(op.beta1),
      .rest1 = static_cast<float>(1 - op.beta1),
      .beta2 = static_cast<float>(op.beta2),
      .rest2 = static_cast<float>(1 - op.beta2),
      .v_scale = static_cast<float>(1 / (1 - std::pow(op.beta2, step))),
      .epsilon = static_cast<float>(op.epsilon),
  };
}

Entry EntryOf(const AdamwUpdate& op, const UpdatedTensor& t, unsigned first_block) {
  const float* previous = t.previous != nullptr ? t.previous : t.parameter;
  const double learning_rate = op.learning_rate * t.learning_rate_scale;
  const double correction = 1 - std::pow(op.beta1, static_cast<double>(op.step));
  return {
      .parameter = t.parameter,
      .previous = previous,
      .gradient = t.gradient,
      .m = t.m,
      .v = t.v,
      .count = t.count,
      .rate = static_cast<float>(learning_rate / correction),
      .decay = static_cast<float>(learning_rate * t.weight_decay),
      .first_block = first_block,
      .moves = learning_rate != 0,
      .fours = InFours(t.count, t.parameter, previous, t.gradient, t.m, t.v),
  };
}

}  // namespace

void Launch(const AdamwUpdate& op, const LaunchContext& context) {
  AdamwList list{.rule = RuleOf(op), .entries = {}, .count = 0};
  unsigned blocks = 0;
  const auto flush = [&] {
    if (list.count == 0) return;
    LaunchKernel(AdamwKernel, Blocks{{blocks}, kThreads}, context.stream, list);
    list.count = 0;
    blocks = 0;
  };
  for (const UpdatedTensor& tensor : op.tensors) {
    if (tensor.count == 0) continue;
    list.entries[list.count++] = EntryOf(op, tensor, blocks);
    blocks += static_cast<unsigned>(CeilDiv(tensor.count, kElementsPerBlock));
    if (list.count == AdamwList::kMost) flush();
  }
  flush();
}

}  // namespace takt::backend::cuda
