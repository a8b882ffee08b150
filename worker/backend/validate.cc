// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/validate.h"

#include <cstddef>
#include <initializer_list>
#include <span>
#include <type_traits>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/backend/op_fields.h"

namespace takt::backend {
namespace {

// Checks that sizes are at least their least values and that tensors are not null.
class FieldCheck : public IgnoreFields {
 public:
  void Name(const char* name) { op_ = name; }
  void Size(const char* name, std::int64_t size, std::int64_t least = 1) {
    if (size >= least || !status_.ok()) return;
    status_ = absl::InvalidArgumentError(
        absl::StrCat(op_, ".", name, " is ", size, ", must be at least ", least));
  }
  void SizeOrNone(const char* name, std::int64_t size) {
    empty_ = size == 0;
    if (!empty_) Size(name, size);
  }
  void Stride(const char* name, std::int64_t stride, std::int64_t columns) {
    if (stride != 0) Size(name, stride, columns);
  }
  void Tensor(const char* name, const auto& field, const auto&... /*extent*/) {
    if (!empty_) Host(name, Data(field));
  }
  void Host(const char* name, const void* field) {
    if (field != nullptr || !status_.ok()) return;
    status_ = absl::InvalidArgumentError(absl::StrCat(op_, ".", name, " is null"));
  }

  const absl::Status& status() const { return status_; }

 private:
  static const void* Data(const void* pointer) { return pointer; }
  static const void* Data(const Operand& operand) {
    return operand.f32 != nullptr ? static_cast<const void*>(operand.f32) : operand.bf16;
  }

  const char* op_ = "";
  bool empty_ = false;
  absl::Status status_;
};

absl::Status Rule(bool holds, const char* op, const char* rule) {
  return holds ? absl::OkStatus() : absl::InvalidArgumentError(absl::StrCat(op, ": ", rule));
}

bool IsThere(const Operand& tensor) { return tensor.f32 != nullptr || tensor.bf16 != nullptr; }

bool SameType(const Operand& a, const Operand& b) {
  return (a.bf16 != nullptr) == (b.bf16 != nullptr);
}

absl::Status CheckType(const char* op, std::initializer_list<Operand> tensors) {
  bool same = true;
  for (const Operand& tensor : tensors) same = same && SameType(tensor, *tensors.begin());
  return Rule(same, op, "its tensors must be all in f32 or all in bf16");
}

// Checks the tensors of a norm's backward that belong to the residual stream.
absl::Status CheckStream(const char* op, const auto& norm) {
  const bool has_residual = IsThere(norm.residual_gradient);
  RETURN_IF_ERROR(Rule(
      SameType(norm.x, norm.d_input) && (!has_residual || SameType(norm.x, norm.residual_gradient)),
      op, "x, residual_gradient and d_input must have one type"));
  return Rule(norm.rounded == nullptr || norm.d_input.bf16 == nullptr, op,
              "rounded needs d_input in f32");
}

// An op that reads f32 may round what it writes; one that reads bf16 must.
absl::Status CheckRounding(const char* op, const Operand& input, const Output& output) {
  return Rule(input.bf16 == nullptr || output.bf16 != nullptr, op,
              "what comes in bf16 must be written in bf16");
}

absl::Status CheckHeads(const char* op, const auto& shape) {
  return Rule(shape.kv_heads < 1 || shape.heads % shape.kv_heads == 0, op,
              "heads must be divisible by kv_heads");
}

absl::Status CheckShares(const char* op, const AttentionShape& shape) {
  return Rule(shape.shares == 1 ? shape.share == 0
                                : shape.share < shape.shares && shape.shares > 0 &&
                                      shape.context % (2 * shape.shares) == 0,
              op, "context must be divisible by 2 * shares, and share below shares");
}

// Checks the tensors of an update that needs so many moments.
void CheckTensors(std::span<const UpdatedTensor> tensors, int moments, FieldCheck& check) {
  for (UpdatedTensor tensor : tensors) {
    DescribeFields(tensor, check);
    if (moments >= 1) check.Tensor("m", tensor.m);
    if (moments >= 2) check.Tensor("v", tensor.v);
  }
}

// Checks that each token can choose so many experts. rows: ExpertRows or RouteTokens::Rows.
absl::Status CheckChosen(const char* op, const auto& rows) {
  return Rule(rows.chosen <= rows.experts, op, "chosen must be at most experts");
}

// Checks that a list has one element for each expert, and that all experts of a token exist.
absl::Status CheckExperts(const char* op, const ExpertRows& rows, std::size_t listed) {
  RETURN_IF_ERROR(CheckChosen(op, rows));
  return Rule(static_cast<std::int64_t>(listed) == rows.experts, op,
              "it needs a matrix for each expert");
}

// Checks the rules between fields, for the ops that have some.
struct CrossFieldRules {
  template <class O>
  absl::Status operator()(const O& /*op*/) const {
    return absl::OkStatus();
  }
  absl::Status operator()(const MatmulBf16& o) const {
    constexpr const char* kOp = "MatmulBf16";
    if (IsThere(o.addend)) {
      RETURN_IF_ERROR(Rule(SameType(o.addend, o.c), kOp, "addend must have c's type"));
      RETURN_IF_ERROR(
          Rule(o.activation == Activation::kNone, kOp, "an activation takes no addend"));
    }
    RETURN_IF_ERROR(
        Rule(o.rounded_bias == nullptr || o.bias != nullptr, kOp, "rounded_bias needs bias"));
    if (o.stored != StoredB::kPacked) {
      const std::int64_t columns = o.stored == StoredB::kRows ? o.n : o.k;
      RETURN_IF_ERROR(Rule(columns % 8 == 0, kOp, "rows of b must be whole vectors of 8"));
      RETURN_IF_ERROR(Rule(!o.a_fp8.rounds(), kOp, "a product in FP8 needs b packed"));
    }
    if (o.activation == Activation::kNone)
      return Rule(o.inner == nullptr, kOp, "inner is of an activation");
    RETURN_IF_ERROR(Rule(o.inner != nullptr, kOp, "an activation needs inner"));
    RETURN_IF_ERROR(Rule(o.c.bf16 != nullptr && (o.c_stride == 0 || o.c_stride == o.n), kOp,
                         "an activation needs c in bf16 and dense"));
    return Rule(o.activation == Activation::kGelu || o.bias == nullptr, kOp,
                "kGeluGrad takes no bias");
  }
  absl::Status operator()(const MatmulTransposedBf16& o) const {
    return Rule(o.column_sums == nullptr || o.b_stride == 0 || o.b_stride == o.n,
                "MatmulTransposedBf16", "column_sums needs a dense b");
  }
  absl::Status operator()(const LayerNormBackwardInput& o) const {
    constexpr const char* kOp = "LayerNormBackwardInput";
    const LayerNormSums& s = o.sums;
    RETURN_IF_ERROR(Rule((s.d_weight == nullptr) == (s.d_bias == nullptr), kOp,
                         "sums.d_weight and sums.d_bias go together"));
    RETURN_IF_ERROR(Rule((s.of_residual_gradient == nullptr) == (s.of_d_input == nullptr), kOp,
                         "sums.of_residual_gradient and sums.of_d_input go together"));
    RETURN_IF_ERROR(CheckStream(kOp, o));
    if (s.of_d_input == nullptr) return absl::OkStatus();
    return Rule(s.d_weight != nullptr && IsThere(o.residual_gradient), kOp,
                "sums.of_d_input needs sums.d_weight and residual_gradient");
  }
  absl::Status operator()(const RmsNormBackwardInput& o) const {
    return CheckStream("RmsNormBackwardInput", o);
  }
  absl::Status operator()(const Rotary& o) const {
    return Rule(o.head_size % 2 == 0, "Rotary", "head_size must be even");
  }
  absl::Status operator()(const SwigluForward& o) const {
    RETURN_IF_ERROR(CheckType("SwigluForward", {o.gate, o.up}));
    return CheckRounding("SwigluForward", o.gate, o.output);
  }
  absl::Status operator()(const SwigluBackward& o) const {
    return CheckType("SwigluBackward", {o.gate, o.up, o.d_output, o.d_gate, o.d_up});
  }
  absl::Status operator()(const GeluForward& o) const {
    return CheckRounding("GeluForward", o.input, o.output);
  }
  absl::Status operator()(const GeluBackward& o) const {
    return CheckType("GeluBackward", {o.input, o.d_output, o.d_input});
  }
  absl::Status operator()(const AttentionForward& o) const {
    RETURN_IF_ERROR(CheckHeads("AttentionForward", o.shape));
    RETURN_IF_ERROR(CheckShares("AttentionForward", o.shape));
    return CheckType("AttentionForward", {o.q, o.k, o.v, o.output});
  }
  absl::Status operator()(const AttentionBackward& o) const {
    RETURN_IF_ERROR(CheckHeads("AttentionBackward", o.shape));
    RETURN_IF_ERROR(CheckShares("AttentionBackward", o.shape));
    return CheckType("AttentionBackward",
                     {o.q, o.k, o.v, o.output, o.d_output, o.d_q, o.d_k, o.d_v});
  }
  absl::Status operator()(const EmbeddingBackward& o) const {
    return Rule((o.tokens == nullptr) == (o.d_token_table == nullptr), "EmbeddingBackward",
                "tokens and d_token_table go together");
  }
  absl::Status operator()(const CachedAttention& o) const {
    return CheckHeads("CachedAttention", o);
  }
  absl::Status operator()(const AdamwUpdate& o) const {
    FieldCheck check;
    check.Name("AdamwUpdate");
    check.Size("step", o.step);
    CheckTensors(o.tensors, /*moments=*/2, check);
    return check.status();
  }
  absl::Status operator()(const LionUpdate& o) const {
    FieldCheck check;
    check.Name("LionUpdate");
    CheckTensors(o.tensors, /*moments=*/1, check);
    return check.status();
  }
  absl::Status operator()(const SgdUpdate& o) const {
    FieldCheck check;
    check.Name("SgdUpdate");
    CheckTensors(o.tensors, /*moments=*/o.momentum != 0 ? 1 : 0, check);
    return check.status();
  }
  absl::Status operator()(const RouteTokens& o) const {
    constexpr const char* kOp = "RouteTokens";
    RETURN_IF_ERROR(CheckChosen(kOp, o.rows));
    return Rule(o.sigmoid == (o.bias != nullptr), kOp,
                "sigmoid needs a bias, and nothing else has one");
  }
  absl::Status operator()(const RouteTokensBackward& o) const {
    constexpr const char* kOp = "RouteTokensBackward";
    RETURN_IF_ERROR(CheckChosen(kOp, o.rows));
    return Rule(o.context < 1 || o.rows.tokens % o.context == 0, kOp,
                "tokens must be divisible by context");
  }
  absl::Status operator()(const ExpertMatmul& o) const {
    constexpr const char* kOp = "ExpertMatmul";
    RETURN_IF_ERROR(CheckExperts(kOp, o.rows, o.matrices.size()));
    for (const ExpertMatrix& matrix : o.matrices) {
      RETURN_IF_ERROR(
          Rule((matrix.b == nullptr) == o.in_bf16() && (matrix.packed != nullptr) == o.in_bf16(),
               kOp, "matrices must have either b or packed, and all the same"));
    }
    RETURN_IF_ERROR(
        Rule(o.a.bf16 == nullptr || o.in_bf16(), kOp, "a in bf16 needs packed matrices"));
    return Rule(o.to_tokens || o.a.bf16 == nullptr, kOp, "a by token must be in f32");
  }
  absl::Status operator()(const ExpertMatmulTransposed& o) const {
    constexpr const char* kOp = "ExpertMatmulTransposed";
    RETURN_IF_ERROR(CheckExperts(kOp, o.rows, o.gradients.size()));
    FieldCheck check;
    check.Name(kOp);
    for (ExpertGradient gradient : o.gradients) DescribeFields(gradient, check);
    RETURN_IF_ERROR(check.status());
    RETURN_IF_ERROR(
        Rule((o.a_by_token ? o.a : o.b).bf16 == nullptr, kOp, "a factor by token must be in f32"));
    return Rule(o.in_bf16 || (o.a.bf16 == nullptr && o.b.bf16 == nullptr), kOp,
                "factors in bf16 need in_bf16");
  }
  absl::Status operator()(const PackTokens& o) const { return CheckChosen("PackTokens", o.rows); }
  absl::Status operator()(const AddRowsToTokens& o) const {
    return CheckChosen("AddRowsToTokens", o.rows);
  }
};

}  // namespace

absl::Status ValidateOp(const Op& op) {
  RETURN_IF_ERROR(std::visit(CrossFieldRules(), op));
  FieldCheck check;
  std::visit([&check](auto copy) { DescribeFields(copy, check); }, op);
  return check.status();
}

}  // namespace takt::backend
