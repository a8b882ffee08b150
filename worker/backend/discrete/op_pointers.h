// SPDX-License-Identifier: Apache-2.0
// The pointers of each op that lead to memory of its backend, in one list: what moves between
// address spaces translates them.
#pragma once

#include "worker/backend/ops.h"

namespace takt::backend {

// Each overload calls f(pointer), f(Operand) or f(Output) by reference for every such field; host
// outputs are left out.
template <class F>
void ForEachPointer(Matmul& o, const F& f) {
  f(o.a), f(o.b), f(o.c), f(o.bias), f(o.addend);
}
template <class F>
void ForEachPointer(PackBf16& o, const F& f) {
  f(o.b), f(o.packed);
}
template <class F>
void ForEachPointer(MatmulBf16& o, const F& f) {
  f(o.a), f(o.b), f(o.c), f(o.bias), f(o.addend), f(o.inner);
}
template <class F>
void ForEachPointer(MatmulTransposedBf16& o, const F& f) {
  f(o.a), f(o.b), f(o.c), f(o.column_sums);
}
template <class F>
void ForEachPointer(BiasGrad& o, const F& f) {
  f(o.d_output), f(o.d_bias);
}
template <class F>
void ForEachPointer(LayerNormForward& o, const F& f) {
  f(o.input), f(o.residual), f(o.sum), f(o.weight), f(o.bias), f(o.output), f(o.mean), f(o.rstd);
}
template <class F>
void ForEachPointer(LayerNormBackwardInput& o, const F& f) {
  f(o.d_output), f(o.x), f(o.weight), f(o.mean), f(o.rstd), f(o.residual_gradient), f(o.d_input);
}
template <class F>
void ForEachPointer(LayerNormBackwardWeights& o, const F& f) {
  f(o.d_output), f(o.x), f(o.mean), f(o.rstd), f(o.d_weight), f(o.d_bias);
}
template <class F>
void ForEachPointer(RmsNormForward& o, const F& f) {
  f(o.input), f(o.weight), f(o.output), f(o.rstd);
}
template <class F>
void ForEachPointer(RmsNormBackwardInput& o, const F& f) {
  f(o.d_output), f(o.x), f(o.weight), f(o.rstd), f(o.residual_gradient), f(o.d_input);
}
template <class F>
void ForEachPointer(RmsNormBackwardWeights& o, const F& f) {
  f(o.d_output), f(o.x), f(o.rstd), f(o.d_weight);
}
template <class F>
void ForEachPointer(Rotary& o, const F& f) {
  f(o.x), f(o.table);
}
template <class F>
void ForEachPointer(SwigluForward& o, const F& f) {
  f(o.gate), f(o.up), f(o.output);
}
template <class F>
void ForEachPointer(SwigluBackward& o, const F& f) {
  f(o.gate), f(o.up), f(o.d_output), f(o.d_gate), f(o.d_up);
}
template <class F>
void ForEachPointer(GeluForward& o, const F& f) {
  f(o.input), f(o.output);
}
template <class F>
void ForEachPointer(GeluBackward& o, const F& f) {
  f(o.input), f(o.d_output), f(o.d_input);
}
template <class F>
void ForEachPointer(AttentionForward& o, const F& f) {
  f(o.q), f(o.k), f(o.v), f(o.output), f(o.logsumexp);
}
template <class F>
void ForEachPointer(AttentionBackward& o, const F& f) {
  f(o.q), f(o.k), f(o.v), f(o.output), f(o.logsumexp), f(o.d_output), f(o.d_q), f(o.d_k), f(o.d_v);
}
template <class F>
void ForEachPointer(EmbeddingForward& o, const F& f) {
  f(o.tokens), f(o.token_table), f(o.position_table), f(o.output);
}
template <class F>
void ForEachPointer(EmbeddingBackward& o, const F& f) {
  f(o.tokens), f(o.d_output), f(o.d_token_table), f(o.d_position_table);
}
template <class F>
void ForEachPointer(CrossEntropy& o, const F& f) {
  f(o.logits), f(o.targets);
}
template <class F>
void ForEachPointer(AdamwUpdate&, const F&) {}  // its tensors have theirs
template <class F>
void ForEachPointer(AdamwTensor& o, const F& f) {
  f(o.parameter), f(o.previous), f(o.gradient), f(o.m), f(o.v);
}
template <class F>
void ForEachPointer(SumOfSquares& o, const F& f) {
  f(o.input);
}
template <class F>
void ForEachPointer(Fill& o, const F& f) {
  f(o.output);
}
template <class F>
void ForEachPointer(Copy& o, const F& f) {
  f(o.input), f(o.output);
}
template <class F>
void ForEachPointer(Add& o, const F& f) {
  f(o.a), f(o.b), f(o.output);
}

}  // namespace takt::backend
