// SPDX-License-Identifier: Apache-2.0
// Describes the fields of each op once. Checks, the translation of addresses and the conversion of
// types are visitors of this description.
//
// DescribeFields(op, visitor) calls, sizes first:
//   Name(name)                        the name of the op
//   Size(name, size, least = 1)       a size, and the least one that is allowed
//   SizeOrNone(name, size)            a size that may be 0: then the tensors may be null
//   Stride(name, stride, columns)     elements between rows of so many columns; 0 means dense
//   Flag(flag)                        a flag that says which kernel runs
//   Tensor(name, field)               a tensor: a pointer, an Operand or an Output
//   Tensor(name, field, extent)       an Operand or Output that a backend whose kernels read and
//                                     write f32 alone must convert from and to bf16
//   Optional(field)                   a tensor that may be null
//   Optional(field, extent)           the same of an Operand or Output, as above
//   Host(name, field)                 an output in host memory
#pragma once

#include <cstdint>

#include "worker/backend/ops.h"

namespace takt::backend {

// The elements of a tensor: rows of `columns` elements, `stride` apart.
struct Extent {
  std::int64_t rows, columns;
  std::int64_t stride = columns;
};

// A visitor that ignores all fields; visitors derive from it.
struct IgnoreFields {
  void Name(const char* /*name*/) {}
  void Size(const char* /*name*/, std::int64_t /*size*/, std::int64_t /*least*/ = 1) {}
  void SizeOrNone(const char* /*name*/, std::int64_t /*size*/) {}
  void Stride(const char* /*name*/, std::int64_t /*stride*/, std::int64_t /*columns*/) {}
  void Flag(bool /*flag*/) {}
  void Tensor(const char* /*name*/, auto& /*field*/, const auto&... /*extent*/) {}
  void Optional(auto& /*field*/, const auto&... /*extent*/) {}
  void Host(const char* /*name*/, const void* /*field*/) {}
};

void DescribeFields(Matmul& o, auto& v) {
  v.Name("Matmul");
  v.Size("m", o.m), v.Size("n", o.n), v.Size("k", o.k);
  v.Tensor("a", o.a), v.Tensor("b", o.b), v.Tensor("c", o.c);
  v.Optional(o.bias), v.Optional(o.addend);
}
void DescribeFields(PackBf16& o, auto& v) {
  v.Name("PackBf16");
  v.Size("k", o.k), v.Size("n", o.n);
  v.Tensor("b", o.b), v.Tensor("packed", o.packed);
}
void DescribeFields(MatmulBf16& o, auto& v) {
  v.Name("MatmulBf16");
  v.Stride("a_stride", o.a_stride, o.k), v.Stride("c_stride", o.c_stride, o.n);
  v.Size("m", o.m), v.Size("n", o.n), v.Size("k", o.k);
  v.Flag(o.stored == StoredB::kPacked), v.Flag(o.stored == StoredB::kTransposedRows);
  const Extent as_c{o.m, o.n, o.c_stride == 0 ? o.n : o.c_stride};
  v.Tensor("a", o.a), v.Tensor("b", o.b), v.Tensor("c", o.c, as_c), v.Optional(o.addend, as_c);
  v.Optional(o.bias), v.Optional(o.rounded_bias), v.Optional(o.inner);
}
void DescribeFields(MatmulTransposedBf16& o, auto& v) {
  v.Name("MatmulTransposedBf16");
  v.Stride("a_stride", o.a_stride, o.m), v.Stride("b_stride", o.b_stride, o.n);
  v.Size("m", o.m), v.Size("n", o.n), v.Size("k", o.k), v.Flag(o.accumulate);
  v.Flag(o.sums_may_wait);
  v.Tensor("a", o.a), v.Tensor("b", o.b), v.Tensor("c", o.c);
  v.Optional(o.column_sums);
}
void DescribeFields(BiasGrad& o, auto& v) {
  v.Name("BiasGrad");
  v.Size("rows", o.rows), v.Size("columns", o.columns), v.Flag(o.accumulate);
  v.Tensor("d_output", o.d_output, Extent{o.rows, o.columns}), v.Tensor("d_bias", o.d_bias);
}
void DescribeFields(LayerNormForward& o, auto& v) {
  v.Name("LayerNormForward");
  v.Size("rows", o.rows), v.Size("columns", o.columns);
  v.Tensor("input", o.input, Extent{o.rows, o.columns}), v.Tensor("weight", o.weight);
  v.Tensor("bias", o.bias), v.Tensor("output", o.output), v.Tensor("mean", o.mean);
  v.Tensor("rstd", o.rstd);
}
void DescribeFields(LayerNormBackwardInput& o, auto& v) {
  v.Name("LayerNormBackwardInput");
  v.Size("rows", o.rows), v.Size("columns", o.columns), v.Flag(o.sums.accumulate);
  const Extent extent{o.rows, o.columns};
  v.Tensor("d_output", o.d_output, extent), v.Tensor("x", o.x, extent);
  v.Tensor("weight", o.weight), v.Tensor("mean", o.mean), v.Tensor("rstd", o.rstd);
  v.Tensor("d_input", o.d_input, extent), v.Optional(o.residual_gradient, extent);
  v.Optional(o.rounded);
  v.Optional(o.sums.d_weight), v.Optional(o.sums.d_bias);
  v.Optional(o.sums.of_residual_gradient), v.Optional(o.sums.of_d_input);
}
void DescribeFields(LayerNormBackwardWeights& o, auto& v) {
  v.Name("LayerNormBackwardWeights");
  v.Size("rows", o.rows), v.Size("columns", o.columns), v.Flag(o.accumulate);
  v.Tensor("d_output", o.d_output, Extent{o.rows, o.columns});
  v.Tensor("x", o.x, Extent{o.rows, o.columns});
  v.Tensor("mean", o.mean), v.Tensor("rstd", o.rstd);
  v.Tensor("d_weight", o.d_weight), v.Tensor("d_bias", o.d_bias);
}
void DescribeFields(RmsNormForward& o, auto& v) {
  v.Name("RmsNormForward");
  v.Size("rows", o.rows), v.Size("columns", o.columns);
  v.Tensor("input", o.input, Extent{o.rows, o.columns}), v.Tensor("weight", o.weight);
  v.Tensor("output", o.output), v.Tensor("rstd", o.rstd);
}
void DescribeFields(RmsNormBackwardInput& o, auto& v) {
  v.Name("RmsNormBackwardInput");
  v.Size("rows", o.rows), v.Size("columns", o.columns), v.Flag(o.sums.accumulate);
  const Extent extent{o.rows, o.columns};
  v.Tensor("d_output", o.d_output, extent), v.Tensor("x", o.x, extent);
  v.Tensor("weight", o.weight), v.Tensor("rstd", o.rstd);
  v.Tensor("d_input", o.d_input, extent), v.Optional(o.residual_gradient, extent);
  v.Optional(o.rounded), v.Optional(o.sums.d_weight);
}
void DescribeFields(RmsNormBackwardWeights& o, auto& v) {
  v.Name("RmsNormBackwardWeights");
  v.Size("rows", o.rows), v.Size("columns", o.columns), v.Flag(o.accumulate);
  v.Tensor("d_output", o.d_output, Extent{o.rows, o.columns});
  v.Tensor("x", o.x, Extent{o.rows, o.columns});
  v.Tensor("rstd", o.rstd), v.Tensor("d_weight", o.d_weight);
}
void DescribeFields(Rotary& o, auto& v) {
  const std::int64_t columns = o.heads * o.head_size;
  v.Name("Rotary");
  v.Size("batch", o.batch), v.Size("context", o.context), v.Size("heads", o.heads);
  v.Size("head_size", o.head_size), v.Size("stride", o.stride, columns);
  v.Tensor("x", o.x, Extent{o.batch * o.context, columns, o.stride}), v.Tensor("table", o.table);
  v.Optional(o.starts);
}
void DescribeFields(SwigluForward& o, auto& v) {
  const Extent extent{o.rows, o.columns, o.stride == 0 ? o.columns : o.stride};
  v.Name("SwigluForward");
  v.Stride("stride", o.stride, o.columns);
  v.Size("rows", o.rows), v.Size("columns", o.columns);
  v.Tensor("gate", o.gate, extent), v.Tensor("up", o.up, extent);
  v.Tensor("output", o.output);
}
void DescribeFields(SwigluBackward& o, auto& v) {
  const Extent extent{o.rows, o.columns, o.stride == 0 ? o.columns : o.stride};
  v.Name("SwigluBackward");
  v.Stride("stride", o.stride, o.columns);
  v.Size("rows", o.rows), v.Size("columns", o.columns);
  v.Tensor("gate", o.gate, extent), v.Tensor("up", o.up, extent);
  v.Tensor("d_output", o.d_output, Extent{o.rows, o.columns});
  v.Tensor("d_gate", o.d_gate, extent), v.Tensor("d_up", o.d_up, extent);
}
void DescribeFields(GeluForward& o, auto& v) {
  v.Name("GeluForward");
  v.Size("count", o.count);
  v.Tensor("input", o.input, Extent{1, o.count}), v.Tensor("output", o.output);
}
void DescribeFields(GeluBackward& o, auto& v) {
  const Extent extent{1, o.count};
  v.Name("GeluBackward");
  v.Size("count", o.count);
  v.Tensor("input", o.input, extent), v.Tensor("d_output", o.d_output, extent);
  v.Tensor("d_input", o.d_input, extent);
}
// The extents of queries (rows `stride` apart) and of keys and values.
inline Extent Queries(const AttentionShape& s, std::int64_t stride) {
  return {s.batch * (s.context / s.shares), s.heads * s.head_size, stride};
}
inline Extent Keys(const AttentionShape& s) {
  return {s.batch * s.context, s.kv_heads * s.head_size, s.kv_stride};
}
void DescribeFields(AttentionShape& s, auto& v) {
  v.Size("batch", s.batch), v.Size("context", s.context), v.Size("heads", s.heads);
  v.Size("kv_heads", s.kv_heads), v.Size("head_size", s.head_size);
  v.Size("q_stride", s.q_stride, s.heads * s.head_size);
  v.Size("kv_stride", s.kv_stride, s.kv_heads * s.head_size);
  v.Size("out_stride", s.out_stride, s.heads * s.head_size);
  v.Size("window", s.window, 0);
  v.Size("shares", s.shares), v.Size("share", s.share, 0);
}
void DescribeFields(AttentionForward& o, auto& v) {
  v.Name("AttentionForward");
  DescribeFields(o.shape, v);
  v.Tensor("q", o.q, Queries(o.shape, o.shape.q_stride));
  v.Tensor("k", o.k, Keys(o.shape)), v.Tensor("v", o.v, Keys(o.shape));
  v.Tensor("output", o.output, Queries(o.shape, o.shape.out_stride));
  v.Tensor("logsumexp", o.logsumexp);
  v.Optional(o.starts);
}
void DescribeFields(AttentionBackward& o, auto& v) {
  const Extent queries = Queries(o.shape, o.shape.q_stride), keys = Keys(o.shape);
  const Extent output = Queries(o.shape, o.shape.out_stride);
  v.Name("AttentionBackward");
  DescribeFields(o.shape, v);
  v.Tensor("q", o.q, queries), v.Tensor("k", o.k, keys), v.Tensor("v", o.v, keys);
  v.Tensor("output", o.output, output), v.Tensor("logsumexp", o.logsumexp);
  v.Tensor("d_output", o.d_output, output), v.Tensor("d_q", o.d_q, queries);
  v.Tensor("d_k", o.d_k, keys), v.Tensor("d_v", o.d_v, keys);
  v.Optional(o.starts);
}
void DescribeFields(CachedAttention& o, auto& v) {
  v.Name("CachedAttention");
  v.Size("rows", o.rows), v.Size("past", o.past, 0);
  v.Size("capacity", o.capacity, o.past + o.rows);
  v.Size("heads", o.heads), v.Size("kv_heads", o.kv_heads), v.Size("head_size", o.head_size);
  v.Size("q_stride", o.q_stride, o.heads * o.head_size);
  v.Size("kv_stride", o.kv_stride, o.kv_heads * o.head_size);
  v.Size("out_stride", o.out_stride, o.heads * o.head_size);
  v.Size("window", o.window, 0);
  v.Tensor("q", o.q), v.Tensor("k", o.k), v.Tensor("v", o.v);
  v.Tensor("keys", o.keys), v.Tensor("values", o.values), v.Tensor("output", o.output);
}
void DescribeFields(EmbeddingForward& o, auto& v) {
  v.Name("EmbeddingForward");
  v.Size("batch", o.batch), v.Size("context", o.context), v.Size("columns", o.columns);
  v.Tensor("token_table", o.token_table);
  v.Tensor("output", o.output, Extent{o.batch * o.context, o.columns});
  v.Optional(o.tokens), v.Optional(o.position_table), v.Optional(o.starts);
  v.Size("first_word", o.first_word, 0), v.Size("num_words", o.num_words, 0);
}
void DescribeFields(EmbeddingBackward& o, auto& v) {
  v.Name("EmbeddingBackward");
  v.Size("batch", o.batch), v.Size("context", o.context), v.Size("columns", o.columns);
  v.Size("vocab", o.vocab), v.Flag(o.accumulate);
  v.Size("positions", o.positions, o.d_position_table != nullptr ? o.context : 0);
  v.Tensor("d_output", o.d_output, Extent{o.batch * o.context, o.columns});
  v.Optional(o.tokens), v.Optional(o.d_token_table);
  v.Optional(o.d_position_table), v.Optional(o.starts);
  v.Size("first_word", o.first_word, 0);
}
void DescribeFields(SoftmaxBlock& o, auto& v) {
  v.Name("SoftmaxBlock");
  v.Stride("stride", o.stride, o.columns);
  v.Size("rows", o.rows), v.Size("columns", o.columns), v.Size("first", o.first, 0);
  v.Tensor("logits", o.logits, Extent{o.rows, o.columns, o.stride == 0 ? o.columns : o.stride});
  v.Tensor("targets", o.targets), v.Tensor("parts", o.parts);
}
void DescribeFields(CrossEntropy& o, auto& v) {
  v.Name("CrossEntropy");
  v.Stride("parts_stride", o.parts_stride, o.rows);
  v.Size("rows", o.rows), v.Size("blocks", o.blocks), v.Flag(o.loss_sum != nullptr);
  v.Tensor("parts", o.parts), v.Tensor("targets", o.targets), v.Tensor("softmax", o.softmax);
}
void DescribeFields(CrossEntropyGradient& o, auto& v) {
  v.Name("CrossEntropyGradient");
  v.Stride("stride", o.stride, o.columns);
  v.Size("rows", o.rows), v.Size("columns", o.columns), v.Size("first", o.first, 0);
  // The extent includes the columns between `columns` and `stride`.
  v.Tensor("logits", o.logits, Extent{o.rows, o.stride == 0 ? o.columns : o.stride});
  v.Tensor("targets", o.targets), v.Tensor("parts", o.parts), v.Tensor("softmax", o.softmax);
}
void DescribeFields(UpdatedTensor& o, auto& v) {
  v.SizeOrNone("count", o.count);
  v.Tensor("parameter", o.parameter), v.Tensor("gradient", o.gradient);
  v.Optional(o.previous), v.Optional(o.m), v.Optional(o.v), v.Optional(o.rounded);
}
// The list of tensors is left out, because its elements are described one by one.
void DescribeFields(AdamwUpdate& /*o*/, auto& v) { v.Name("AdamwUpdate"); }
void DescribeFields(LionUpdate& /*o*/, auto& v) { v.Name("LionUpdate"); }
void DescribeFields(SgdUpdate& /*o*/, auto& v) { v.Name("SgdUpdate"); }
void DescribeFields(MuonUpdate& o, auto& v) {
  v.Name("MuonUpdate");
  v.Size("rows", o.rows), v.Size("columns", o.columns);
  v.Tensor("parameter", o.parameter), v.Tensor("gradient", o.gradient), v.Tensor("m", o.m);
  v.Tensor("scratch", o.scratch);
  v.Optional(o.previous);
}
void DescribeFields(FeedBackError& o, auto& v) {
  v.Name("FeedBackError");
  v.SizeOrNone("count", o.count);
  v.Tensor("parameter", o.parameter), v.Tensor("previous", o.previous);
  v.Tensor("last_update", o.last_update);
}
void DescribeFields(SumOfSquares& o, auto& v) {
  v.Name("SumOfSquares");
  v.SizeOrNone("count", o.count);
  v.Tensor("input", o.input);
  v.Host("result", o.block_sums != nullptr ? o.block_sums : o.result);
}
void DescribeFields(Fill& o, auto& v) {
  v.Name("Fill");
  v.SizeOrNone("count", o.count);
  v.Tensor("output", o.output);
}
void DescribeFields(Copy& o, auto& v) {
  v.Name("Copy");
  v.SizeOrNone("count", o.count);
  v.Tensor("input", o.input), v.Tensor("output", o.output);
}
void DescribeFields(Add& o, auto& v) {
  v.Name("Add");
  v.SizeOrNone("count", o.count);
  v.Tensor("a", o.a), v.Tensor("b", o.b), v.Tensor("output", o.output);
}
void DescribeFields(RouteTokens::Rows& o, auto& v) {
  v.Size("tokens", o.tokens), v.Size("experts", o.experts), v.Size("chosen", o.chosen);
  v.Tensor("offsets", o.offsets), v.Tensor("pairs", o.pairs);
}
void DescribeFields(ExpertRows& o, auto& v) {
  v.Size("tokens", o.tokens), v.Size("experts", o.experts), v.Size("chosen", o.chosen);
  v.Tensor("offsets", o.offsets), v.Tensor("pairs", o.pairs);
}
void DescribeFields(RouteTokens& o, auto& v) {
  v.Name("RouteTokens");
  DescribeFields(o.rows, v);
  v.Flag(o.normalised), v.Flag(o.sigmoid);
  v.Tensor("logits", o.logits), v.Tensor("choices", o.choices), v.Tensor("weights", o.weights);
  v.Optional(o.bias);
}
void DescribeFields(RouteTokensBackward& o, auto& v) {
  v.Name("RouteTokensBackward");
  DescribeFields(o.rows, v);
  v.Size("context", o.context), v.Flag(o.normalised), v.Flag(o.sigmoid);
  v.Tensor("logits", o.logits), v.Tensor("choices", o.choices);
  v.Tensor("d_weights", o.d_weights), v.Tensor("d_logits", o.d_logits);
}
void DescribeFields(CountExpertRows& o, auto& v) {
  v.Name("CountExpertRows");
  DescribeFields(o.rows, v);
  v.Host("counts", o.counts);
}
void DescribeFields(AddExpertRows& o, auto& v) {
  v.Name("AddExpertRows");
  DescribeFields(o.rows, v);
  v.Flag(o.accumulate);
  v.Tensor("sums", o.sums);
}
void DescribeFields(BalanceExperts& o, auto& v) {
  v.Name("BalanceExperts");
  v.SizeOrNone("count", o.count);
  v.Tensor("previous", o.previous), v.Tensor("counts", o.counts), v.Tensor("bias", o.bias);
}
void DescribeFields(ExpertSwigluForward& o, auto& v) {
  v.Name("ExpertSwigluForward");
  DescribeFields(o.rows, v);
  v.Size("columns", o.columns);
  v.Tensor("gate", o.gate), v.Tensor("up", o.up), v.Tensor("weights", o.weights);
  v.Tensor("output", o.output);
}
void DescribeFields(ExpertSwigluBackward& o, auto& v) {
  v.Name("ExpertSwigluBackward");
  DescribeFields(o.rows, v);
  v.Size("columns", o.columns);
  v.Tensor("gate", o.gate), v.Tensor("up", o.up), v.Tensor("weights", o.weights);
  v.Tensor("d_output", o.d_output), v.Tensor("d_gate", o.d_gate), v.Tensor("d_up", o.d_up);
  v.Tensor("d_weights", o.d_weights);
}
void DescribeFields(ExpertMatrix& o, auto& v) { v.Optional(o.b), v.Optional(o.packed); }
void DescribeFields(ExpertGradient& o, auto& v) { v.Tensor("c", o.c); }
// The lists are left out, as in the ops of updates.
void DescribeFields(ExpertMatmul& o, auto& v) {
  v.Name("ExpertMatmul");
  DescribeFields(o.rows, v);
  v.Size("n", o.n), v.Size("k", o.k);
  v.Flag(o.b_transposed), v.Flag(o.to_tokens), v.Flag(o.in_bf16());
  v.Tensor("a", o.a), v.Tensor("c", o.c);
}
void DescribeFields(ExpertMatmulTransposed& o, auto& v) {
  v.Name("ExpertMatmulTransposed");
  DescribeFields(o.rows, v);
  v.Size("m", o.m), v.Size("n", o.n);
  v.Flag(o.a_by_token), v.Flag(o.in_bf16), v.Flag(o.accumulate);
  v.Tensor("a", o.a), v.Tensor("b", o.b);
}
void DescribeFields(PackTokens& o, auto& v) {
  v.Name("PackTokens");
  DescribeFields(o.rows, v);
  v.Size("columns", o.columns);
  v.Tensor("by_token", o.by_token), v.Tensor("by_row", o.by_row);
}
void DescribeFields(AddRowsToTokens& o, auto& v) {
  v.Name("AddRowsToTokens");
  DescribeFields(o.rows, v);
  v.Size("columns", o.columns);
  v.Tensor("choices", o.choices);
  v.Tensor("by_row", o.by_row), v.Tensor("by_token", o.by_token);
}
void DescribeFields(PackPairs& o, auto& v) {
  v.Name("PackPairs");
  DescribeFields(o.rows, v);
  v.Tensor("by_pair", o.by_pair), v.Tensor("by_row", o.by_row);
}
void DescribeFields(UnpackPairs& o, auto& v) {
  v.Name("UnpackPairs");
  DescribeFields(o.rows, v);
  v.Tensor("by_row", o.by_row), v.Tensor("by_pair", o.by_pair);
}

}  // namespace takt::backend
