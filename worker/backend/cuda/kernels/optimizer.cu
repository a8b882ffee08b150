// SPDX-License-Identifier: Apache-2.0
// Updates a list of tensors by AdamW, Lion or SGD in few launches. It moves 28, 20 or 12 bytes of
// memory an element with two moments, one or none, and 2 more where it also leaves it rounded.
#include <cmath>

#include "worker/backend/cuda/kernels/device.cuh"
#include "worker/backend/cuda/kernels/kernels.h"

namespace takt::backend::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kGroups = 4;  // of four elements, of a thread
constexpr std::int64_t kElementsPerBlock = kThreads * kGroups * 4;

struct Entry {
  float* parameter;
  const float* previous;
  const float* gradient;
  float* m;
  float* v;
  Bf16* rounded;
  std::int64_t count;
  float rate, decay;  // as the rule takes them
  unsigned first_block;
  bool moves;  // if not, every bit stays, also the sign of a zero
  bool fours;
  bool foresees;  // the moments stay
};

template <bool kFours>
__device__ void StoreParameter(const Entry& t, std::int64_t i, const Four& p) {
  Store<kFours>(t.parameter, i, t.count, p);
  if (t.rounded != nullptr) Store<kFours>(t.rounded, i, t.count, p);
}

struct AdamwRule {
  float scale, beta1, rest1, beta2, rest2, v_scale, epsilon;

  template <bool kFours>
  __device__ void Update(const Entry& t, std::int64_t i) const {
    Four g = Load<kFours>(t.gradient, i, t.count), m = Load<kFours>(t.m, i, t.count),
         v = Load<kFours>(t.v, i, t.count), p = Load<kFours>(t.previous, i, t.count);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      g.v[k] *= scale;
      m.v[k] = m.v[k] * beta1 + g.v[k] * rest1;
      v.v[k] = v.v[k] * beta2 + g.v[k] * g.v[k] * rest2;
      // p (1 - lr wd) - update, in a form that does not round 1 - lr wd to a float: that would
      // change the decay.
      const float update = t.rate * m.v[k] / (sqrtf(v.v[k] * v_scale) + epsilon);
      const float moved = p.v[k] - (p.v[k] * t.decay + update);
      if (t.moves) p.v[k] = moved;
    }
    if (!t.foresees) {
      Store<kFours>(t.m, i, t.count, m);
      Store<kFours>(t.v, i, t.count, v);
    }
    StoreParameter<kFours>(t, i, p);
  }
};

struct LionRule {
  float scale, beta1, rest1, beta2, rest2;

  template <bool kFours>
  __device__ void Update(const Entry& t, std::int64_t i) const {
    Four g = Load<kFours>(t.gradient, i, t.count), m = Load<kFours>(t.m, i, t.count),
         p = Load<kFours>(t.previous, i, t.count);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      g.v[k] *= scale;
      const float c = m.v[k] * beta1 + g.v[k] * rest1;
      m.v[k] = m.v[k] * beta2 + g.v[k] * rest2;
      // A zero and a NaN stay what they are.
      const float sign = c > 0 ? 1.0F : (c < 0 ? -1.0F : c);
      const float moved = p.v[k] - (p.v[k] * t.decay + t.rate * sign);
      if (t.moves) p.v[k] = moved;
    }
    if (!t.foresees) Store<kFours>(t.m, i, t.count, m);
    StoreParameter<kFours>(t, i, p);
  }
};

struct SgdRule {
  float scale, momentum;
  bool has_momentum, nesterov;

  template <bool kFours>
  __device__ void Update(const Entry& t, std::int64_t i) const {
    Four d = Load<kFours>(t.gradient, i, t.count), p = Load<kFours>(t.previous, i, t.count);
#pragma unroll
    for (int k = 0; k < 4; ++k) d.v[k] = d.v[k] * scale + p.v[k] * t.decay;
    Four update = d;
    if (has_momentum) {
      Four m = Load<kFours>(t.m, i, t.count);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        m.v[k] = m.v[k] * momentum + d.v[k];
        update.v[k] = nesterov ? d.v[k] + m.v[k] * momentum : m.v[k];
      }
      if (!t.foresees) Store<kFours>(t.m, i, t.count, m);
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float moved = p.v[k] - t.rate * update.v[k];
      if (t.moves) p.v[k] = moved;
    }
    StoreParameter<kFours>(t, i, p);
  }
};

// Everything that a launch reads beside the tensors themselves. A kernel takes 4 KB by value.
template <class Rule>
struct List {
  static constexpr int kMost = kTensorsOfUpdate;
  Rule rule;
  Entry entries[kMost];
  int count;
};

template <class Rule>
__global__ __launch_bounds__(kThreads) void UpdateKernel(List<Rule> list) {
  int index = 0;
  while (index + 1 < list.count && list.entries[index + 1].first_block <= blockIdx.x) ++index;
  const Entry& t = list.entries[index];
  const std::int64_t begin =
      (blockIdx.x - t.first_block) * kElementsPerBlock + static_cast<int>(threadIdx.x) * 4;
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    const std::int64_t i = begin + group * kThreads * 4;
    if (i >= t.count) break;
    if (t.fours) {
      list.rule.template Update<true>(t, i);
    } else {
      list.rule.template Update<false>(t, i);
    }
  }
}

// Returns the entry of a tensor that decays by its own rate, without what LaunchLists sets.
Entry EntryOf(const UpdatedTensor& t, double learning_rate) {
  const float* previous = t.previous != nullptr ? t.previous : t.parameter;
  return {
      .parameter = t.parameter,
      .previous = previous,
      .gradient = t.gradient,
      .m = t.m,
      .v = t.v,
      .rounded = t.rounded,
      .count = t.count,
      .rate = static_cast<float>(learning_rate),
      .decay = static_cast<float>(learning_rate * t.weight_decay),
      .first_block = 0,
      .moves = learning_rate != 0,
      .fours = InFours(t.count, t.parameter, previous, t.gradient, t.m, t.v, t.rounded),
      .foresees = false,
  };
}

// entry_of: Entry(const UpdatedTensor&, double learning_rate); it leaves out the first block and
// whether the update foresees.
template <class Rule, class Op, class EntryOfTensor>
void LaunchLists(const Rule& rule, const Op& op, const EntryOfTensor& entry_of,
                 const LaunchContext& context) {
  static_assert(sizeof(List<Rule>) <= 4096);
  List<Rule> list{.rule = rule, .entries = {}, .count = 0};
  unsigned blocks = 0;
  const auto flush = [&] {
    if (list.count == 0) return;
    LaunchKernel(UpdateKernel<Rule>, Blocks{{blocks}, kThreads}, context.stream, list);
    list.count = 0;
    blocks = 0;
  };
  for (const UpdatedTensor& tensor : op.tensors) {
    if (tensor.count == 0) continue;
    Entry& entry = list.entries[list.count++];
    entry = entry_of(tensor, op.learning_rate * tensor.learning_rate_scale);
    entry.first_block = blocks;
    entry.foresees = op.foresees;
    blocks += static_cast<unsigned>(CeilDiv(tensor.count, kElementsPerBlock));
    if (list.count == List<Rule>::kMost) flush();
  }
  flush();
}

}  // namespace

void Launch(const AdamwUpdate& op, const LaunchContext& context) {
  const auto step = static_cast<double>(op.step);
  const double correction = 1 - std::pow(op.beta1, step);
  const AdamwRule rule = {
      .scale = static_cast<float>(op.gradient_scale),
      .beta1 = static_cast<float>(op.beta1),
      .rest1 = static_cast<float>(1 - op.beta1),
      .beta2 = static_cast<float>(op.beta2),
      .rest2 = static_cast<float>(1 - op.beta2),
      .v_scale = static_cast<float>(1 / (1 - std::pow(op.beta2, step))),
      .epsilon = static_cast<float>(op.epsilon),
  };
  const auto entry_of = [correction](const UpdatedTensor& tensor, double learning_rate) {
    Entry entry = EntryOf(tensor, learning_rate);
    entry.rate = static_cast<float>(learning_rate / correction);
    return entry;
  };
  LaunchLists(rule, op, entry_of, context);
}

void Launch(const LionUpdate& op, const LaunchContext& context) {
  const LionRule rule = {
      .scale = static_cast<float>(op.gradient_scale),
      .beta1 = static_cast<float>(op.beta1),
      .rest1 = static_cast<float>(1 - op.beta1),
      .beta2 = static_cast<float>(op.beta2),
      .rest2 = static_cast<float>(1 - op.beta2),
  };
  LaunchLists(rule, op, EntryOf, context);
}

void Launch(const SgdUpdate& op, const LaunchContext& context) {
  const SgdRule rule = {
      .scale = static_cast<float>(op.gradient_scale),
      .momentum = static_cast<float>(op.momentum),
      .has_momentum = op.momentum != 0,
      .nesterov = op.nesterov,
  };
  const auto entry_of = [](const UpdatedTensor& tensor, double learning_rate) {
    Entry entry = EntryOf(tensor, learning_rate);
    entry.decay = static_cast<float>(tensor.weight_decay);
    return entry;
  };
  LaunchLists(rule, op, entry_of, context);
}

}  // namespace takt::backend::cuda
