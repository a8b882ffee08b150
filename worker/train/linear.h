// SPDX-License-Identifier: Apache-2.0
// The three products of a linear layer y = x W + b with W stored [in,out], as GPT-2 does.
#pragma once

#include "absl/status/status.h"
#include "common/base/status.h"
#include "worker/backend/backend.h"
#include "worker/train/parameter_store.h"

namespace takt::train {

class Linear {
 public:
  // rows: N. weight [in,out], bias [out]: borrowed.
  Linear(std::int64_t rows, const ParameterRef& weight, const ParameterRef& bias)
      : rows_(rows),
        in_(weight.parameter->shape[0]),
        out_(weight.parameter->shape[1]),
        weight_(weight),
        bias_(bias) {}

  // y [N,out] = x W + b + addend (optional, [N,out]).
  absl::Status Forward(backend::Backend& backend, const float* x, const float* addend,
                       float* y) const {
    return backend.Run(backend::Matmul{.a = x,
                                       .b = weight_.weight,
                                       .c = y,
                                       .bias = bias_.weight,
                                       .addend = addend,
                                       .m = rows_,
                                       .n = out_,
                                       .k = in_});
  }

  // dx [N,in] = dy W^T
  absl::Status InputGrad(backend::Backend& backend, const float* dy, float* dx) const {
    return backend.Run(backend::Matmul{.a = dy,
                                       .b = weight_.weight,
                                       .c = dx,
                                       .b_transposed = true,
                                       .m = rows_,
                                       .n = in_,
                                       .k = out_});
  }

  // dW (+)= x^T dy, db (+)= column sums of dy
  absl::Status WeightGrad(backend::Backend& backend, const float* x, const float* dy,
                          bool accumulate) const {
    RETURN_IF_ERROR(backend.Run(backend::Matmul{.a = x,
                                                .b = dy,
                                                .c = weight_.gradient,
                                                .addend = accumulate ? weight_.gradient : nullptr,
                                                .a_transposed = true,
                                                .m = in_,
                                                .n = out_,
                                                .k = rows_}));
    return backend.Run(backend::BiasGrad{.d_output = dy,
                                         .d_bias = bias_.gradient,
                                         .rows = rows_,
                                         .columns = out_,
                                         .accumulate = accumulate});
  }

 private:
  const std::int64_t rows_, in_, out_;
  const ParameterRef& weight_;
  const ParameterRef& bias_;
};

}  // namespace takt::train
