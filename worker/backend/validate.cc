// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/validate.h"

#include <initializer_list>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::backend {
namespace {

struct Size {
  const char* name;
  std::int64_t value;
  std::int64_t least = 1;
};

struct Pointer {
  const char* name;
  const void* value;
};

absl::Status Check(const char* op, std::initializer_list<Size> sizes,
                   std::initializer_list<Pointer> pointers) {
  for (const Size& size : sizes) {
    if (size.value < size.least) {
      return absl::InvalidArgumentError(
          absl::StrCat(op, ".", size.name, " is ", size.value, ", must be at least ", size.least));
    }
  }
  for (const Pointer& pointer : pointers) {
    if (pointer.value == nullptr)
      return absl::InvalidArgumentError(absl::StrCat(op, ".", pointer.name, " is null"));
  }
  return absl::OkStatus();
}

const void* Data(const Operand& operand) {
  return operand.f32 != nullptr ? static_cast<const void*>(operand.f32) : operand.bf16;
}

const void* Data(const Output& output) { return Data(Operand(output)); }

bool SameType(std::initializer_list<Operand> tensors) {
  for (const Operand& tensor : tensors) {
    if ((tensor.bf16 != nullptr) != (tensors.begin()->bf16 != nullptr)) return false;
  }
  return true;
}

absl::Status Rule(bool holds, const char* op, const char* rule) {
  return holds ? absl::OkStatus() : absl::InvalidArgumentError(absl::StrCat(op, ": ", rule));
}

absl::Status CheckType(const char* op, std::initializer_list<Operand> tensors) {
  return Rule(SameType(tensors), op, "its tensors must be all in f32 or all in bf16");
}

// What reads f32 may round what it writes; what reads bf16 must.
absl::Status CheckRounding(const char* op, const Operand& input, const Output& output) {
  return Rule(input.bf16 == nullptr || output.bf16 != nullptr, op,
              "what comes in bf16 must be written in bf16");
}

// Of rows of `columns`; 0 is dense.
absl::Status CheckStride(const char* op, const char* name, std::int64_t stride,
                         std::int64_t columns) {
  return stride == 0 ? absl::OkStatus() : Check(op, {{name, stride, columns}}, {});
}

absl::Status CheckActivation(const MatmulBf16& o) {
  constexpr const char* kOp = "MatmulBf16";
  if (o.activation == Activation::kNone) {
    return Rule(o.inner == nullptr, kOp, "inner is of an activation");
  }
  RETURN_IF_ERROR(Rule(o.inner != nullptr, kOp, "an activation needs inner"));
  RETURN_IF_ERROR(Rule(o.c.bf16 != nullptr && (o.c_stride == 0 || o.c_stride == o.n), kOp,
                       "an activation needs c in bf16 and dense"));
  return Rule(o.activation == Activation::kGelu || o.bias == nullptr, kOp,
              "kGeluGrad takes no bias");
}

absl::Status CheckShape(const char* op, const AttentionShape& s) {
  RETURN_IF_ERROR(Check(op,
                        {{"batch", s.batch},
                         {"context", s.context},
                         {"heads", s.heads},
                         {"kv_heads", s.kv_heads},
                         {"head_size", s.head_size}},
                        {}));
  if (s.heads % s.kv_heads != 0) return Rule(false, op, "heads must be divisible by kv_heads");
  return Check(op,
               {{"q_stride", s.q_stride, s.heads * s.head_size},
                {"kv_stride", s.kv_stride, s.kv_heads * s.head_size},
                {"out_stride", s.out_stride, s.heads * s.head_size}},
               {});
}

struct Validator {
  absl::Status operator()(const Matmul& o) const {
    return Check("Matmul", {{"m", o.m}, {"n", o.n}, {"k", o.k}},
                 {{"a", o.a}, {"b", o.b}, {"c", o.c}});
  }
  absl::Status operator()(const PackBf16& o) const {
    return Check("PackBf16", {{"k", o.k}, {"n", o.n}}, {{"b", o.b}, {"packed", o.packed}});
  }
  absl::Status operator()(const MatmulBf16& o) const {
    RETURN_IF_ERROR(CheckStride("MatmulBf16", "a_stride", o.a_stride, o.k));
    RETURN_IF_ERROR(CheckStride("MatmulBf16", "c_stride", o.c_stride, o.n));
    RETURN_IF_ERROR(CheckActivation(o));
    RETURN_IF_ERROR(
        Rule(o.addend == nullptr || o.c.f32 != nullptr, "MatmulBf16", "addend needs c in f32"));
    return Check("MatmulBf16", {{"m", o.m}, {"n", o.n}, {"k", o.k}},
                 {{"a", Data(o.a)}, {"b", o.b}, {"c", Data(o.c)}});
  }
  absl::Status operator()(const MatmulTransposedBf16& o) const {
    RETURN_IF_ERROR(CheckStride("MatmulTransposedBf16", "a_stride", o.a_stride, o.m));
    RETURN_IF_ERROR(CheckStride("MatmulTransposedBf16", "b_stride", o.b_stride, o.n));
    RETURN_IF_ERROR(Rule(o.column_sums == nullptr || o.b_stride == 0 || o.b_stride == o.n,
                         "MatmulTransposedBf16", "column_sums needs a dense b"));
    return Check("MatmulTransposedBf16", {{"m", o.m}, {"n", o.n}, {"k", o.k}},
                 {{"a", Data(o.a)}, {"b", Data(o.b)}, {"c", o.c}});
  }
  absl::Status operator()(const BiasGrad& o) const {
    return Check("BiasGrad", {{"rows", o.rows}, {"columns", o.columns}},
                 {{"d_output", Data(o.d_output)}, {"d_bias", o.d_bias}});
  }
  absl::Status operator()(const LayerNormForward& o) const {
    if ((o.residual == nullptr) != (o.sum == nullptr)) {
      return Rule(false, "LayerNormForward", "residual and sum go together");
    }
    return Check("LayerNormForward", {{"rows", o.rows}, {"columns", o.columns}},
                 {{"input", o.input},
                  {"weight", o.weight},
                  {"bias", o.bias},
                  {"output", Data(o.output)},
                  {"mean", o.mean},
                  {"rstd", o.rstd}});
  }
  absl::Status operator()(const LayerNormBackwardInput& o) const {
    return Check("LayerNormBackwardInput", {{"rows", o.rows}, {"columns", o.columns}},
                 {{"d_output", Data(o.d_output)},
                  {"x", o.x},
                  {"weight", o.weight},
                  {"mean", o.mean},
                  {"rstd", o.rstd},
                  {"d_input", o.d_input}});
  }
  absl::Status operator()(const LayerNormBackwardWeights& o) const {
    return Check("LayerNormBackwardWeights", {{"rows", o.rows}, {"columns", o.columns}},
                 {{"d_output", Data(o.d_output)},
                  {"x", o.x},
                  {"mean", o.mean},
                  {"rstd", o.rstd},
                  {"d_weight", o.d_weight},
                  {"d_bias", o.d_bias}});
  }
  absl::Status operator()(const RmsNormForward& o) const {
    return Check(
        "RmsNormForward", {{"rows", o.rows}, {"columns", o.columns}},
        {{"input", o.input}, {"weight", o.weight}, {"output", Data(o.output)}, {"rstd", o.rstd}});
  }
  absl::Status operator()(const RmsNormBackwardInput& o) const {
    return Check("RmsNormBackwardInput", {{"rows", o.rows}, {"columns", o.columns}},
                 {{"d_output", Data(o.d_output)},
                  {"x", o.x},
                  {"weight", o.weight},
                  {"rstd", o.rstd},
                  {"d_input", o.d_input}});
  }
  absl::Status operator()(const RmsNormBackwardWeights& o) const {
    return Check(
        "RmsNormBackwardWeights", {{"rows", o.rows}, {"columns", o.columns}},
        {{"d_output", Data(o.d_output)}, {"x", o.x}, {"rstd", o.rstd}, {"d_weight", o.d_weight}});
  }
  absl::Status operator()(const Rotary& o) const {
    if (o.head_size % 2 != 0) return Rule(false, "Rotary", "head_size must be even");
    return Check("Rotary",
                 {{"batch", o.batch},
                  {"context", o.context},
                  {"heads", o.heads},
                  {"head_size", o.head_size},
                  {"stride", o.stride, o.heads * o.head_size}},
                 {{"x", Data(o.x)}, {"table", o.table}});
  }
  absl::Status operator()(const SwigluForward& o) const {
    RETURN_IF_ERROR(CheckType("SwigluForward", {o.gate, o.up}));
    RETURN_IF_ERROR(CheckRounding("SwigluForward", o.gate, o.output));
    return Check("SwigluForward", {{"count", o.count}},
                 {{"gate", Data(o.gate)}, {"up", Data(o.up)}, {"output", Data(o.output)}});
  }
  absl::Status operator()(const SwigluBackward& o) const {
    RETURN_IF_ERROR(CheckType("SwigluBackward", {o.gate, o.up, o.d_output, o.d_gate, o.d_up}));
    return Check("SwigluBackward", {{"count", o.count}},
                 {{"gate", Data(o.gate)},
                  {"up", Data(o.up)},
                  {"d_output", Data(o.d_output)},
                  {"d_gate", Data(o.d_gate)},
                  {"d_up", Data(o.d_up)}});
  }
  absl::Status operator()(const GeluForward& o) const {
    RETURN_IF_ERROR(CheckRounding("GeluForward", o.input, o.output));
    return Check("GeluForward", {{"count", o.count}},
                 {{"input", Data(o.input)}, {"output", Data(o.output)}});
  }
  absl::Status operator()(const GeluBackward& o) const {
    RETURN_IF_ERROR(CheckType("GeluBackward", {o.input, o.d_output, o.d_input}));
    return Check(
        "GeluBackward", {{"count", o.count}},
        {{"input", Data(o.input)}, {"d_output", Data(o.d_output)}, {"d_input", Data(o.d_input)}});
  }
  absl::Status operator()(const AttentionForward& o) const {
    RETURN_IF_ERROR(CheckShape("AttentionForward", o.shape));
    RETURN_IF_ERROR(CheckType("AttentionForward", {o.q, o.k, o.v, o.output}));
    return Check("AttentionForward", {},
                 {{"q", Data(o.q)},
                  {"k", Data(o.k)},
                  {"v", Data(o.v)},
                  {"output", Data(o.output)},
                  {"logsumexp", o.logsumexp}});
  }
  absl::Status operator()(const AttentionBackward& o) const {
    RETURN_IF_ERROR(CheckShape("AttentionBackward", o.shape));
    RETURN_IF_ERROR(
        CheckType("AttentionBackward", {o.q, o.k, o.v, o.output, o.d_output, o.d_q, o.d_k, o.d_v}));
    return Check("AttentionBackward", {},
                 {{"q", Data(o.q)},
                  {"k", Data(o.k)},
                  {"v", Data(o.v)},
                  {"output", Data(o.output)},
                  {"logsumexp", o.logsumexp},
                  {"d_output", Data(o.d_output)},
                  {"d_q", Data(o.d_q)},
                  {"d_k", Data(o.d_k)},
                  {"d_v", Data(o.d_v)}});
  }
  absl::Status operator()(const EmbeddingForward& o) const {
    return Check("EmbeddingForward",
                 {{"batch", o.batch}, {"context", o.context}, {"columns", o.columns}},
                 {{"tokens", o.tokens}, {"token_table", o.token_table}, {"output", o.output}});
  }
  absl::Status operator()(const EmbeddingBackward& o) const {
    return Check(
        "EmbeddingBackward",
        {{"batch", o.batch},
         {"context", o.context},
         {"columns", o.columns},
         {"vocab", o.vocab},
         {"positions", o.positions, o.d_position_table != nullptr ? o.context : 0}},
        {{"tokens", o.tokens}, {"d_output", o.d_output}, {"d_token_table", o.d_token_table}});
  }
  absl::Status operator()(const CrossEntropy& o) const {
    RETURN_IF_ERROR(CheckStride("CrossEntropy", "stride", o.stride, o.vocab));
    return Check("CrossEntropy", {{"rows", o.rows}, {"vocab", o.vocab}},
                 {{"logits", Data(o.logits)}, {"targets", o.targets}, {"loss_sum", o.loss_sum}});
  }
  absl::Status operator()(const AdamwUpdate& o) const {
    RETURN_IF_ERROR(Check("AdamwUpdate", {{"step", o.step}}, {}));
    for (const AdamwTensor& t : o.tensors) {
      if (t.count == 0) continue;
      RETURN_IF_ERROR(
          Check("AdamwUpdate", {{"count", t.count}},
                {{"parameter", t.parameter}, {"gradient", t.gradient}, {"m", t.m}, {"v", t.v}}));
    }
    return absl::OkStatus();
  }
  absl::Status operator()(const SumOfSquares& o) const {
    RETURN_IF_ERROR(Check("SumOfSquares", {{"count", o.count, 0}}, {{"result", o.result}}));
    return Rule(o.count == 0 || o.input != nullptr, "SumOfSquares", "input is null");
  }
  absl::Status operator()(const Fill& o) const {
    if (o.count == 0) return absl::OkStatus();
    return Check("Fill", {{"count", o.count}}, {{"output", o.output}});
  }
  absl::Status operator()(const Copy& o) const {
    if (o.count == 0) return absl::OkStatus();
    RETURN_IF_ERROR(CheckType("Copy", {o.input, o.output}));
    return Check("Copy", {{"count", o.count}},
                 {{"input", Data(o.input)}, {"output", Data(o.output)}});
  }
  absl::Status operator()(const Add& o) const {
    if (o.count == 0) return absl::OkStatus();
    return Check("Add", {{"count", o.count}}, {{"a", o.a}, {"b", o.b}, {"output", o.output}});
  }
};

}  // namespace

absl::Status ValidateOp(const Op& op) { return std::visit(Validator{}, op); }

}  // namespace takt::backend
