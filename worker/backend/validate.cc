// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/validate.h"

#include <initializer_list>

#include "absl/strings/str_cat.h"

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

absl::Status Rule(bool holds, const char* op, const char* rule) {
  return holds ? absl::OkStatus() : absl::InvalidArgumentError(absl::StrCat(op, ": ", rule));
}

absl::Status CheckShape(const char* op, const AttentionShape& s) {
  if (absl::Status status = Check(op,
                                  {{"batch", s.batch},
                                   {"context", s.context},
                                   {"heads", s.heads},
                                   {"kv_heads", s.kv_heads},
                                   {"head_size", s.head_size}},
                                  {});
      !status.ok()) {
    return status;
  }
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
    return Check("MatmulBf16", {{"m", o.m}, {"n", o.n}, {"k", o.k}},
                 {{"a", Data(o.a)}, {"b", o.b}, {"c", o.c}});
  }
  absl::Status operator()(const MatmulTransposedBf16& o) const {
    return Check("MatmulTransposedBf16", {{"m", o.m}, {"n", o.n}, {"k", o.k}},
                 {{"a", Data(o.a)}, {"b", Data(o.b)}, {"c", o.c}});
  }
  absl::Status operator()(const BiasGrad& o) const {
    return Check("BiasGrad", {{"rows", o.rows}, {"columns", o.columns}},
                 {{"d_output", o.d_output}, {"d_bias", o.d_bias}});
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
                 {{"d_output", o.d_output},
                  {"x", o.x},
                  {"weight", o.weight},
                  {"mean", o.mean},
                  {"rstd", o.rstd},
                  {"d_input", o.d_input}});
  }
  absl::Status operator()(const LayerNormBackwardWeights& o) const {
    return Check("LayerNormBackwardWeights", {{"rows", o.rows}, {"columns", o.columns}},
                 {{"d_output", o.d_output},
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
                 {{"d_output", o.d_output},
                  {"x", o.x},
                  {"weight", o.weight},
                  {"rstd", o.rstd},
                  {"d_input", o.d_input}});
  }
  absl::Status operator()(const RmsNormBackwardWeights& o) const {
    return Check(
        "RmsNormBackwardWeights", {{"rows", o.rows}, {"columns", o.columns}},
        {{"d_output", o.d_output}, {"x", o.x}, {"rstd", o.rstd}, {"d_weight", o.d_weight}});
  }
  absl::Status operator()(const Rotary& o) const {
    if (o.head_size % 2 != 0) return Rule(false, "Rotary", "head_size must be even");
    return Check("Rotary",
                 {{"batch", o.batch},
                  {"context", o.context},
                  {"heads", o.heads},
                  {"head_size", o.head_size},
                  {"stride", o.stride, o.heads * o.head_size}},
                 {{"x", o.x}, {"table", o.table}});
  }
  absl::Status operator()(const SwigluForward& o) const {
    return Check("SwigluForward", {{"count", o.count}},
                 {{"gate", o.gate}, {"up", o.up}, {"output", Data(o.output)}});
  }
  absl::Status operator()(const SwigluBackward& o) const {
    return Check("SwigluBackward", {{"count", o.count}},
                 {{"gate", o.gate},
                  {"up", o.up},
                  {"d_output", o.d_output},
                  {"d_gate", o.d_gate},
                  {"d_up", o.d_up}});
  }
  absl::Status operator()(const GeluForward& o) const {
    return Check("GeluForward", {{"count", o.count}},
                 {{"input", o.input}, {"output", Data(o.output)}});
  }
  absl::Status operator()(const GeluBackward& o) const {
    return Check("GeluBackward", {{"count", o.count}},
                 {{"input", o.input}, {"d_output", o.d_output}, {"d_input", o.d_input}});
  }
  absl::Status operator()(const AttentionForward& o) const {
    if (absl::Status status = CheckShape("AttentionForward", o.shape); !status.ok()) return status;
    return Check(
        "AttentionForward", {},
        {{"q", o.q}, {"k", o.k}, {"v", o.v}, {"output", o.output}, {"logsumexp", o.logsumexp}});
  }
  absl::Status operator()(const AttentionBackward& o) const {
    if (absl::Status status = CheckShape("AttentionBackward", o.shape); !status.ok()) return status;
    return Check("AttentionBackward", {},
                 {{"q", o.q},
                  {"k", o.k},
                  {"v", o.v},
                  {"output", o.output},
                  {"logsumexp", o.logsumexp},
                  {"d_output", o.d_output},
                  {"d_q", o.d_q},
                  {"d_k", o.d_k},
                  {"d_v", o.d_v}});
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
    return Check("CrossEntropy", {{"rows", o.rows}, {"vocab", o.vocab}},
                 {{"logits", o.logits}, {"targets", o.targets}, {"loss_sum", o.loss_sum}});
  }
  absl::Status operator()(const AdamwUpdate& o) const {
    if (o.count == 0) return absl::OkStatus();
    return Check("AdamwUpdate", {{"count", o.count}, {"step", o.step}},
                 {{"parameter", o.parameter}, {"gradient", o.gradient}, {"m", o.m}, {"v", o.v}});
  }
  absl::Status operator()(const SumOfSquares& o) const {
    if (absl::Status status =
            Check("SumOfSquares", {{"count", o.count, 0}}, {{"result", o.result}});
        !status.ok()) {
      return status;
    }
    return Rule(o.count == 0 || o.input != nullptr, "SumOfSquares", "input is null");
  }
  absl::Status operator()(const Fill& o) const {
    if (o.count == 0) return absl::OkStatus();
    return Check("Fill", {{"count", o.count}}, {{"output", o.output}});
  }
  absl::Status operator()(const Copy& o) const {
    if (o.count == 0) return absl::OkStatus();
    return Check("Copy", {{"count", o.count}}, {{"input", o.input}, {"output", o.output}});
  }
  absl::Status operator()(const Add& o) const {
    if (o.count == 0) return absl::OkStatus();
    return Check("Add", {{"count", o.count}}, {{"a", o.a}, {"b", o.b}, {"output", o.output}});
  }
};

}  // namespace

absl::Status ValidateOp(const Op& op) { return std::visit(Validator{}, op); }

}  // namespace takt::backend
