// SPDX-License-Identifier: Apache-2.0
// Ops whose tensors come in bf16, computed by kernels that know these tensors in f32 alone: on
// twins of them, which are rounded afterwards. Slower than f32, and what other backends are held
// to.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "worker/backend/cpu/kernels.h"
#include "worker/backend/cpu/thread_team.h"
#include "worker/backend/ops.h"

namespace takt::backend {

struct Extent {
  std::int64_t rows, columns;
  std::int64_t stride = columns;
};

// For one op.
class Widening {
 public:
  // Both borrowed.
  Widening(ThreadTeam& team, const Kernels& kernels) : team_(team), kernels_(kernels) {}

  // The op with twins instead of tensors in bf16.
  template <class O>
  O Widen(O op) {
    ForEachTensor(op, [&](auto& tensor, const Extent& extent) { Widen(tensor, extent); });
    return op;
  }
  // After the op: what it has left in twins of its outputs goes where it belongs.
  void Round();

 private:
  struct Twin {
    std::unique_ptr<float[]> data;  // strides as the tensor's
    Bf16* output;
    Extent extent;
  };

  void Widen(Operand& tensor, const Extent& extent);
  void Widen(Output& tensor, const Extent& extent);
  std::unique_ptr<float[]> Widened(const Bf16* tensor, const Extent& extent);

  // Calls f(Operand or Output, Extent) for the tensors that kernels know in f32 alone.
  template <class O, class F>
  static void ForEachTensor(O&, const F&) {}
  template <class F>
  static void ForEachTensor(MatmulBf16& o, const F& f) {
    f(o.c, Extent{o.m, o.n, o.c_stride == 0 ? o.n : o.c_stride});
  }
  template <class F>
  static void ForEachTensor(BiasGrad& o, const F& f) {
    f(o.d_output, Extent{o.rows, o.columns});
  }
  template <class F>
  static void ForEachTensor(LayerNormBackwardInput& o, const F& f) {
    f(o.d_output, Extent{o.rows, o.columns});
  }
  template <class F>
  static void ForEachTensor(LayerNormBackwardWeights& o, const F& f) {
    f(o.d_output, Extent{o.rows, o.columns});
  }
  template <class F>
  static void ForEachTensor(RmsNormBackwardInput& o, const F& f) {
    f(o.d_output, Extent{o.rows, o.columns});
  }
  template <class F>
  static void ForEachTensor(RmsNormBackwardWeights& o, const F& f) {
    f(o.d_output, Extent{o.rows, o.columns});
  }
  template <class F>
  static void ForEachTensor(Rotary& o, const F& f) {
    f(o.x, Extent{o.batch * o.context, o.heads * o.head_size, o.stride});
  }
  template <class F>
  static void ForEachTensor(SwigluForward& o, const F& f) {
    f(o.gate, Extent{1, o.count}), f(o.up, Extent{1, o.count});
  }
  template <class F>
  static void ForEachTensor(SwigluBackward& o, const F& f) {
    const Extent extent{1, o.count};
    f(o.gate, extent), f(o.up, extent), f(o.d_output, extent);
    f(o.d_gate, extent), f(o.d_up, extent);
  }
  template <class F>
  static void ForEachTensor(GeluForward& o, const F& f) {
    f(o.input, Extent{1, o.count});
  }
  template <class F>
  static void ForEachTensor(GeluBackward& o, const F& f) {
    const Extent extent{1, o.count};
    f(o.input, extent), f(o.d_output, extent), f(o.d_input, extent);
  }
  template <class F>
  static void ForEachTensor(AttentionForward& o, const F& f) {
    const AttentionShape& s = o.shape;
    f(o.q, Queries(s, s.q_stride)), f(o.k, Keys(s)), f(o.v, Keys(s));
    f(o.output, Queries(s, s.out_stride));
  }
  template <class F>
  static void ForEachTensor(AttentionBackward& o, const F& f) {
    const AttentionShape& s = o.shape;
    const Extent queries = Queries(s, s.q_stride), output = Queries(s, s.out_stride);
    f(o.q, queries), f(o.k, Keys(s)), f(o.v, Keys(s));
    f(o.output, output), f(o.d_output, output);
    f(o.d_q, queries), f(o.d_k, Keys(s)), f(o.d_v, Keys(s));
  }
  // With the columns between vocab and stride.
  template <class F>
  static void ForEachTensor(CrossEntropy& o, const F& f) {
    f(o.logits, Extent{o.rows, o.stride == 0 ? o.vocab : o.stride});
  }
  static Extent Queries(const AttentionShape& s, std::int64_t stride) {
    return {s.batch * s.context, s.heads * s.head_size, stride};
  }
  static Extent Keys(const AttentionShape& s) {
    return {s.batch * s.context, s.kv_heads * s.head_size, s.kv_stride};
  }

  ThreadTeam& team_;
  const Kernels& kernels_;
  std::vector<Twin> twins_;
};

}  // namespace takt::backend
