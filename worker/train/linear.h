// SPDX-License-Identifier: Apache-2.0
// The three products of a linear layer y = x W + b, with W stored [in,out], as GPT-2 does, or
// [out,in], as most others do. In bf16 if W is packed.
#pragma once

#include <span>

#include "absl/status/status.h"
#include "common/base/status.h"
#include "worker/backend/backend.h"
#include "worker/train/parameter_store.h"

namespace takt::train {

class Linear {
 public:
  enum class Storage { kInOut, kOutIn };

  // rows: N. weight, bias [out] (null: none): borrowed.
  Linear(std::int64_t rows, Storage storage, const ParameterRef& weight, const ParameterRef* bias)
      : rows_(rows),
        out_in_(storage == Storage::kOutIn),
        in_(weight.parameter->shape[out_in_ ? 1 : 0]),
        out_(weight.parameter->shape[out_in_ ? 0 : 1]),
        weight_(weight),
        bias_(bias) {}

  // Whether its operands are rounded.
  bool in_bf16() const { return weight_.packed != nullptr; }

  // y [N,out] = x W + b + addend (optional, [N,out]).
  absl::Status Forward(backend::Backend& backend, const backend::Operand& x, const float* addend,
                       float* y) const {
    const float* bias = bias_ != nullptr ? bias_->weight : nullptr;
    if (in_bf16()) {
      return backend.Run(
          backend::MatmulBf16{.a = x,
                              .b = out_in_ ? weight_.packed_transposed : weight_.packed,
                              .c = y,
                              .bias = bias,
                              .addend = addend,
                              .m = rows_,
                              .n = out_,
                              .k = in_});
    }
    return backend.Run(backend::Matmul{.a = x.f32,
                                       .b = weight_.weight,
                                       .c = y,
                                       .bias = bias,
                                       .addend = addend,
                                       .b_transposed = out_in_,
                                       .m = rows_,
                                       .n = out_,
                                       .k = in_});
  }

  // dx [N,in] = dy W^T + addend (optional, [N,in]; may be dx).
  absl::Status InputGrad(backend::Backend& backend, const float* dy, float* dx,
                         const float* addend = nullptr) const {
    if (in_bf16()) {
      return backend.Run(
          backend::MatmulBf16{.a = dy,
                              .b = out_in_ ? weight_.packed : weight_.packed_transposed,
                              .c = dx,
                              .addend = addend,
                              .m = rows_,
                              .n = in_,
                              .k = out_});
    }
    return backend.Run(backend::Matmul{.a = dy,
                                       .b = weight_.weight,
                                       .c = dx,
                                       .addend = addend,
                                       .b_transposed = !out_in_,
                                       .m = rows_,
                                       .n = in_,
                                       .k = out_});
  }

  // dW (+)= x^T dy, or its transpose; db (+)= column sums of dy. x, dy: by microbatch. Those that
  // lie one after the other in both are one product with so many more rows.
  absl::Status WeightGrad(backend::Backend& backend, std::span<const backend::Operand> x,
                          std::span<const backend::Operand> dy, bool accumulate) const {
    for (std::size_t first = 0, end = 0; first < x.size(); first = end) {
      end = first + 1;
      while (end < x.size() && Follows(x[end - 1], x[end], rows_ * in_) &&
             Follows(dy[end - 1], dy[end], rows_ * out_)) {
        ++end;
      }
      const std::int64_t rows = rows_ * static_cast<std::int64_t>(end - first);
      RETURN_IF_ERROR(WeightGrad(backend, rows, x[first], dy[first], accumulate || first > 0));
    }
    return absl::OkStatus();
  }

 private:
  static bool Follows(const backend::Operand& a, const backend::Operand& b, std::int64_t elements) {
    return a.bf16 != nullptr ? a.bf16 + elements == b.bf16 : a.f32 + elements == b.f32;
  }

  absl::Status WeightGrad(backend::Backend& backend, std::int64_t rows, const backend::Operand& x,
                          const backend::Operand& dy, bool accumulate) const {
    const backend::Operand left = out_in_ ? dy : x, right = out_in_ ? x : dy;
    RETURN_IF_ERROR(MatrixGrad(backend, rows, left, right, accumulate));
    if (bias_ == nullptr) return absl::OkStatus();
    return backend.Run(backend::BiasGrad{.d_output = dy.f32,
                                         .d_bias = bias_->gradient,
                                         .rows = rows,
                                         .columns = out_,
                                         .accumulate = accumulate});
  }

  // dW (+)= left^T right
  absl::Status MatrixGrad(backend::Backend& backend, std::int64_t rows,
                          const backend::Operand& left, const backend::Operand& right,
                          bool accumulate) const {
    const std::int64_t m = out_in_ ? out_ : in_, n = out_in_ ? in_ : out_;
    if (in_bf16()) {
      return backend.Run(backend::MatmulTransposedBf16{.a = left,
                                                       .b = right,
                                                       .c = weight_.gradient,
                                                       .accumulate = accumulate,
                                                       .m = m,
                                                       .n = n,
                                                       .k = rows});
    }
    return backend.Run(backend::Matmul{.a = left.f32,
                                       .b = right.f32,
                                       .c = weight_.gradient,
                                       .addend = accumulate ? weight_.gradient : nullptr,
                                       .a_transposed = true,
                                       .m = m,
                                       .n = n,
                                       .k = rows});
  }

  const std::int64_t rows_;
  const bool out_in_;
  const std::int64_t in_, out_;
  const ParameterRef& weight_;
  const ParameterRef* const bias_;
};

}  // namespace takt::train
