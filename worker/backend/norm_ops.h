// SPDX-License-Identifier: Apache-2.0
// The operations of norms along rows: LayerNorm (Ba et al. 2016) and RmsNorm. ops.h has the rules
// for all operations, and the letters.
#pragma once

#include <cstdint>

#include "worker/backend/operand.h"

namespace takt::backend {

// output = (input - mean) * rstd * weight + bias per row, rstd = 1 / sqrt(variance + epsilon),
// variance with 1/C.
struct LayerNormForward {
  Operand input;                  // [N,C], in either type
  const float* weight = nullptr;  // [C]
  const float* bias = nullptr;    // [C]
  Output output;                  // [N,C], in either type
  float* mean = nullptr;          // [N]
  float* rstd = nullptr;          // [N]
  std::int64_t rows = 0, columns = 0;
  float epsilon = 1e-5F;
};

// Sums over rows that LayerNormBackwardInput adds up on its way. Each is [C] and (+)=. All are
// null, or the first two are set, or all of them are. A gradient in bf16 is summed as it
// is stored.
struct LayerNormSums {
  float* d_weight = nullptr;              // of the norm, as W's
  float* d_bias = nullptr;                // likewise
  float* of_residual_gradient = nullptr;  // which the op then needs
  float* of_d_input = nullptr;
  bool accumulate = false;
};

// I: d_input = (gradient through the norm) + residual_gradient. With `sums`, it is also W, and the
// gradient of the biases that were added to `x` and to what residual_gradient is of. x,
// residual_gradient and d_input are of one type, which need not be that of d_output.
struct LayerNormBackwardInput {
  Operand d_output;               // [N,C]
  Operand x;                      // [N,C] input of the forward
  const float* weight = nullptr;  // [C]
  const float* mean = nullptr;    // [N]
  const float* rstd = nullptr;    // [N]
  Operand residual_gradient;      // [N,C] or null
  Output d_input;                 // [N,C]; may be x, residual_gradient or (if of its type) d_output
  // [N,C] or null: d_input rounded, for products; only if d_input is in f32.
  Bf16* rounded = nullptr;
  LayerNormSums sums;
  std::int64_t rows = 0, columns = 0;
};

// W: d_weight[C] (+)= sum over rows of d_output * (x - mean) * rstd;  d_bias[C] (+)= sum over rows
// of d_output.
struct LayerNormBackwardWeights {
  Operand d_output;             // [N,C], in either type
  Operand x;                    // [N,C], in either type
  const float* mean = nullptr;  // [N]
  const float* rstd = nullptr;  // [N]
  float* d_weight = nullptr;    // [C]
  float* d_bias = nullptr;      // [C]
  std::int64_t rows = 0, columns = 0;
  bool accumulate = false;
};

// output = x * rstd * weight per row, rstd = 1 / sqrt(mean(x^2) + epsilon)
// (Zhang & Sennrich 2019).
struct RmsNormForward {
  Operand input;                  // [N,C], in either type
  const float* weight = nullptr;  // [C]
  Output output;                  // [N,C], in either type
  float* rstd = nullptr;          // [N]
  std::int64_t rows = 0, columns = 0;
  float epsilon = 1e-5F;
};

// Sums over rows that RmsNormBackwardInput adds up on its way.
struct RmsNormSums {
  float* d_weight = nullptr;  // [C] or null; (+)=, as W's
  bool accumulate = false;
};

// I: d_input = (gradient through the norm) + residual_gradient. With `sums`, it is also W. Types
// are as those of LayerNormBackwardInput.
struct RmsNormBackwardInput {
  Operand d_output;               // [N,C]
  Operand x;                      // [N,C] input of the forward
  const float* weight = nullptr;  // [C]
  const float* rstd = nullptr;    // [N]
  Operand residual_gradient;      // [N,C] or null
  Output d_input;                 // [N,C]; may be x, residual_gradient or (if of its type) d_output
  Bf16* rounded = nullptr;  // [N,C] or null: d_input rounded, for products; only of one in f32
  RmsNormSums sums;
  std::int64_t rows = 0, columns = 0;
};

// W: d_weight[C] (+)= sum over rows of d_output * x * rstd.
struct RmsNormBackwardWeights {
  Operand d_output;             // [N,C], in either type
  Operand x;                    // [N,C], in either type
  const float* rstd = nullptr;  // [N]
  float* d_weight = nullptr;    // [C]
  std::int64_t rows = 0, columns = 0;
  bool accumulate = false;
};

}  // namespace takt::backend
