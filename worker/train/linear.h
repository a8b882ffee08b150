// SPDX-License-Identifier: Apache-2.0
// The three products of a linear layer y = x W + b. W is stored as [in,out], as GPT-2 does, or as
// [out,in], as most others do. The products are in bf16 if W is packed; then x, y and their
// gradients may be in bf16 too. A layer may have a part of a stored matrix: a run of its rows; or
// several matrices that lie one after the other. Operands of products in bf16 are rounded to FP8 if
// W says so.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "common/base/status.h"
#include "worker/backend/backend.h"
#include "worker/train/parameter_store.h"

namespace takt::train {

class Linear {
 public:
  enum class Storage { kInOut, kOutIn };

  // rows: N. weight, bias ([out]; null: none): borrowed. y_stride: the number of elements between
  // rows of y and of its gradient, in bf16; 0: out.
  Linear(std::int64_t rows, Storage storage, const ParameterRef& weight, const ParameterRef* bias,
         std::int64_t y_stride = 0)
      : rows_(rows),
        out_in_(storage == Storage::kOutIn),
        in_(weight.parameter->shape[out_in_ ? 1 : 0]),
        out_(weight.parameter->shape[out_in_ ? 0 : 1]),
        weight_(weight),
        bias_(bias),
        y_stride_(y_stride) {}

  // A run of the rows of a W that is stored as [out,in]. Where W is packed, each run is apart.
  struct Run {
    std::int64_t first = 0, count = 0;
  };

  // The layer of these outputs alone, without a bias. Other arguments as above.
  Linear(std::int64_t rows, const ParameterRef& weight, const Run& run, std::int64_t y_stride)
      : rows_(rows),
        out_in_(true),
        in_(weight.parameter->shape[1]),
        out_(run.count),
        weight_(weight),
        bias_(nullptr),
        y_stride_(y_stride),
        first_(run.first) {}

  // The layer of several W that are joined (Parameter::adjoins_next) and stored as [out,in],
  // without biases. Its outputs are side by side: [N, sum of out].
  Linear(std::int64_t rows, std::span<const ParameterRef> joined)
      : rows_(rows),
        out_in_(true),
        in_(joined.front().parameter->shape[1]),
        out_(SumOfRows(joined)),
        weight_(joined.front()),
        bias_(nullptr),
        y_stride_(0) {
    for (std::size_t i = 1; i < joined.size(); ++i) {
      const ParameterRef& before = joined[i - 1];
      TAKT_CHECK(before.parameter->adjoins_next);
      TAKT_CHECK(joined[i].gradient == before.gradient + before.elements());
      TAKT_CHECK(joined[i].packed == before.packed + before.elements());
    }
  }

  // Has what one leaf has of a W that tensor parallelism splits (model::Split).
  struct Piece {
    int number = 0;         // among the pieces of this rank
    int gradient = 0;       // which of the gradients is the leaf's
    bool adds_bias = true;  // false: Forward leaves b out, but W has its gradient
  };

  // Makes the layer of one piece. bias: cut as the weight is, or copied. The other arguments are
  // those above.
  Linear(std::int64_t rows, Storage storage, const ParameterRef& weight, const ParameterRef* bias,
         const Piece& piece)
      : rows_(rows),
        out_in_(storage == Storage::kOutIn),
        in_(out_in_ ? weight.columns() : RowsOfPiece(weight)),
        out_(out_in_ ? RowsOfPiece(weight) : weight.columns()),
        weight_(weight),
        bias_(bias),
        y_stride_(0),
        first_(piece.number * RowsOfPiece(weight)),
        gradient_behind_(piece.gradient * weight.elements()),
        bias_first_(bias == nullptr || bias->parameter->split.pieces == 1 ? 0
                                                                          : piece.number * out_),
        bias_gradient_behind_(bias == nullptr ? 0 : piece.gradient * bias->elements()),
        adds_bias_(piece.adds_bias) {}

  // Returns the same layer for another number of rows.
  Linear ForRows(std::int64_t rows) const {
    Linear layer = *this;
    layer.rows_ = rows;
    return layer;
  }

  // Computes y [N,out] = x W + b + addend (optional, [N,out], of y's type).
  absl::Status Forward(backend::Backend& backend, const backend::Operand& x,
                       const backend::Operand& addend, const backend::Output& y) const {
    if (!in_bf16()) return backend.Run(Product(x.f32, addend.f32, y.f32, /*backward=*/false));
    backend::MatmulBf16 product = ProductBf16(x, y, /*backward=*/false);
    product.addend = addend;
    product.c_stride = y_stride_;
    return backend.Run(product);
  }

  // Computes inner = x W + b and y = gelu(inner), both in bf16. y may be computed from an inner
  // that is not yet rounded.
  absl::Status ForwardGelu(backend::Backend& backend, const backend::Operand& x,
                           backend::Bf16* inner, backend::Bf16* y) const {
    backend::MatmulBf16 product = ProductBf16(x, y, /*backward=*/false);
    product.activation = backend::Activation::kGelu;
    product.inner = inner;
    return backend.Run(product);
  }

  // Computes dx [N,in] = dy W^T + addend (optional, [N,in], of dx's type; may be dx).
  absl::Status InputGrad(backend::Backend& backend, const backend::Operand& dy,
                         const backend::Output& dx,
                         const backend::Operand& addend = nullptr) const {
    if (!in_bf16()) return backend.Run(Product(dy.f32, addend.f32, dx.f32, /*backward=*/true));
    backend::MatmulBf16 product = ProductBf16(dy, dx, /*backward=*/true);
    product.addend = addend;
    product.a_stride = y_stride_;
    return backend.Run(product);
  }

  // For x = gelu(inner): computes d_inner [N,in] = dy W^T * gelu'(inner). All but dy are in bf16.
  absl::Status InputGradBeforeGelu(backend::Backend& backend, const backend::Operand& dy,
                                   backend::Bf16* inner, backend::Bf16* d_inner) const {
    backend::MatmulBf16 product = ProductBf16(dy, d_inner, /*backward=*/true);
    product.activation = backend::Activation::kGeluGrad;
    product.inner = inner;
    return backend.Run(product);
  }

  // Returns b's gradient, for whoever computes it in place of WeightGrad; null: there is no b.
  float* bias_gradient() const { return bias_ == nullptr ? nullptr : GradientOfBias(); }

  // kHere: with the product, where it can sum; kLater: there, but it may be added only after the
  // next one that is kHere (MatmulTransposedBf16::sums_may_wait); kApart: by an op of its own,
  // which has the bits of the sums of a norm's backward; kElsewhere: by such a backward.
  enum class BiasGradient { kHere, kLater, kApart, kElsewhere };
  // Computes dW (+)= x^T dy, or its transpose, and, unless it is computed elsewhere, db (+)= column
  // sums of dy. x, dy: by microbatch. Microbatches that follow each other in memory, in both x and
  // dy, are one product with that many more rows.
  absl::Status WeightGrad(backend::Backend& backend, std::span<const backend::Operand> x,
                          std::span<const backend::Operand> dy, bool accumulate,
                          BiasGradient bias = BiasGradient::kHere) const {
    for (std::size_t first = 0, end = 0; first < x.size(); first = end) {
      end = first + 1;
      while (end < x.size() && Follows(x[end - 1], x[end], rows_ * in_) &&
             Follows(dy[end - 1], dy[end], rows_ * std::max(out_, y_stride_))) {
        ++end;
      }
      const std::int64_t rows = rows_ * static_cast<std::int64_t>(end - first);
      RETURN_IF_ERROR(WeightGrad(backend, rows, x[first], dy[first], accumulate || first > 0,
                                 bias_ == nullptr ? BiasGradient::kElsewhere : bias));
    }
    return absl::OkStatus();
  }

 private:
  static std::int64_t RowsOfPiece(const ParameterRef& weight) {
    return weight.parameter->shape[0] / weight.parameter->split.count;
  }
  static std::int64_t SumOfRows(std::span<const ParameterRef> weights) {
    std::int64_t rows = 0;
    for (const ParameterRef& weight : weights) rows += weight.parameter->shape[0];
    return rows;
  }

  // Returns whether its operands are rounded to bf16.
  bool in_bf16() const { return weight_.packed != nullptr; }

  static bool Follows(const backend::Operand& a, const backend::Operand& b, std::int64_t elements) {
    return a.bf16 != nullptr ? a.bf16 + elements == b.bf16 : a.f32 + elements == b.f32;
  }

  // Returns c = a W + b + addend, or, if `backward`, c = a W^T + addend.
  backend::Matmul Product(const float* a, const float* addend, float* c, bool backward) const {
    return {.a = a,
            .b = weight_.weight + Before(),
            .c = c,
            .bias = Bias(backward),
            .addend = addend,
            .b_transposed = backward != out_in_,
            .m = rows_,
            .n = backward ? in_ : out_,
            .k = backward ? out_ : in_};
  }

  // Returns the same in bf16, without an addend.
  backend::MatmulBf16 ProductBf16(const backend::Operand& a, const backend::Output& c,
                                  bool backward) const {
    backend::MatmulBf16 product{.a = a,
                                .a_fp8 = backward ? OfGradient() : OfInput(),
                                .c = c,
                                .bias = Bias(backward),
                                .rounded_bias = RoundedBias(backward),
                                .m = rows_,
                                .n = backward ? in_ : out_,
                                .k = backward ? out_ : in_};
    const bool transposed = backward != out_in_;
    if (weight_.parameter->kept_rounded) {
      product.b = weight_.packed + Before();
      product.stored = transposed ? backend::StoredB::kTransposedRows : backend::StoredB::kRows;
    } else {
      const ParameterRef::PackedOffsets offsets = weight_.PackedBefore(first_);
      product.b = transposed ? weight_.packed_transposed + offsets.transposed
                             : weight_.packed + offsets.packed;
    }
    return product;
  }

  // Returns the elements of W that are stored before those of this layer.
  std::int64_t Before() const { return first_ * weight_.columns(); }
  const float* Bias(bool backward) const {
    return bias_ == nullptr || backward || !adds_bias_ ? nullptr : bias_->weight + bias_first_;
  }
  // Null: there is none, or it is not rounded.
  const backend::Bf16* RoundedBias(bool backward) const {
    if (Bias(backward) == nullptr || bias_->packed == nullptr) return nullptr;
    return bias_->packed + bias_first_;
  }
  backend::Fp8 OfInput() const { return {weight_.fp8, backend::Fp8Operand::kActivation}; }
  backend::Fp8 OfGradient() const { return {weight_.fp8, backend::Fp8Operand::kGradient}; }
  float* Gradient() const { return weight_.gradient + gradient_behind_ + Before(); }
  float* GradientOfBias() const { return bias_->gradient + bias_gradient_behind_ + bias_first_; }

  absl::Status WeightGrad(backend::Backend& backend, std::int64_t rows, const backend::Operand& x,
                          const backend::Operand& dy, bool accumulate, BiasGradient bias) const {
    if (in_bf16()) {
      backend::MatmulTransposedBf16 product = MatrixGradBf16(rows, x, dy, accumulate);
      const bool later = bias == BiasGradient::kLater;
      if ((later || bias == BiasGradient::kHere) && SumsWithMatrix()) {
        product.column_sums = GradientOfBias();
        product.sums_may_wait = later;
        return backend.Run(product);
      }
      RETURN_IF_ERROR(backend.Run(product));
    } else {
      RETURN_IF_ERROR(MatrixGrad(backend, rows, x.f32, dy.f32, accumulate));
    }
    if (bias == BiasGradient::kElsewhere) return absl::OkStatus();
    return backend.Run(backend::BiasGrad{.d_output = dy,
                                         .d_bias = GradientOfBias(),
                                         .rows = rows,
                                         .columns = out_,
                                         .accumulate = accumulate});
  }

  // Returns whether the op for dW can compute db too. It can if dy is the right one of its two
  // factors.
  bool SumsWithMatrix() const { return !out_in_; }

  backend::MatmulTransposedBf16 MatrixGradBf16(std::int64_t rows, const backend::Operand& x,
                                               const backend::Operand& dy, bool accumulate) const {
    return {.a = out_in_ ? dy : x,
            .b = out_in_ ? x : dy,
            .a_fp8 = out_in_ ? OfGradient() : OfInput(),
            .b_fp8 = out_in_ ? OfInput() : OfGradient(),
            .a_stride = out_in_ ? y_stride_ : 0,
            .b_stride = out_in_ ? 0 : y_stride_,
            .c = Gradient(),
            .accumulate = accumulate,
            .m = out_in_ ? out_ : in_,
            .n = out_in_ ? in_ : out_,
            .k = rows};
  }

  absl::Status MatrixGrad(backend::Backend& backend, std::int64_t rows, const float* x,
                          const float* dy, bool accumulate) const {
    return backend.Run(backend::Matmul{.a = out_in_ ? dy : x,
                                       .b = out_in_ ? x : dy,
                                       .c = Gradient(),
                                       .addend = accumulate ? Gradient() : nullptr,
                                       .a_transposed = true,
                                       .m = out_in_ ? out_ : in_,
                                       .n = out_in_ ? in_ : out_,
                                       .k = rows});
  }

  std::int64_t rows_;
  const bool out_in_;
  const std::int64_t in_, out_;
  const ParameterRef& weight_;
  const ParameterRef* const bias_;
  const std::int64_t y_stride_;
  const std::int64_t first_ = 0;  // its first row among those that are stored of W
  // Of a piece: the elements between the first gradient and the leaf's, and those of the bias
  // before its own.
  const std::int64_t gradient_behind_ = 0;
  const std::int64_t bias_first_ = 0, bias_gradient_behind_ = 0;
  const bool adds_bias_ = true;
};

}  // namespace takt::train
