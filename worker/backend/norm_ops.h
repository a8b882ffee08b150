// SPDX-License-Identifier: Apache-2.0
// The operations of norms along rows: LayerNorm (Ba et al. 2016) and RmsNorm. ops.h has the rules
// for all operations, and the letters.
#pragma once

#include <cstdint>

#include "worker/backend/operand.h"

namespace takt::backend {

// output = (x - mean) * rstd * weight + bias per row, rstd = 1 / sqrt(variance + epsilon), variance
// with 1/C. With `residual`, x is input + residual and is written to `sum`.
struct LayerNormForward {
  const float* input = nullptr;     // [N,C]
  const float* residual = nullptr;  // [N,C] or null
  float* sum = nullptr;             // [N,C] if residual, else null; may be input or residual
  const float* weight = nullptr;    // [C]
  const float* bias = nullptr;      // [C]
  Output output;                    // [N,C]
  float* mean = nullptr;            // [N]
  float* rstd = nullptr;            // [N]
  std::int64_t rows = 0, columns = 0;
  float epsilon = 1e-5F;
};

// Sums over rows that LayerNormBackwardInput adds up on its way. Each is [C] and (+)=. All are
// null, or the first two are set, or all of them are.
struct LayerNormSums {
  float* d_weight = nullptr;              // of the norm, as W's
  float* d_bias = nullptr;                // likewise
  float* of_residual_gradient = nullptr;  // which the op then needs
  float* of_d_input = nullptr;
  bool accumulate = false;
};

// I: d_input = (gradient through the norm) + residual_gradient. With `sums`, it is also W, and the
// gradient of the biases that were added to `x` and to what residual_gradient is of.
struct LayerNormBackwardInput {
  Operand d_output;               // [N,C]
  const float* x = nullptr;       // [N,C] what was normalised (`sum` or `input` of the forward)
  const float* weight = nullptr;  // [C]
  const float* mean = nullptr;    // [N]
  const float* rstd = nullptr;    // [N]
  const float* residual_gradient = nullptr;  // [N,C] or null
  float* d_input = nullptr;  // [N,C]; may be x, residual_gradient or (in f32) d_output
  Bf16* rounded = nullptr;   // [N,C] or null: d_input rounded, for products
  LayerNormSums sums;
  std::int64_t rows = 0, columns = 0;
};

// W: d_weight[C] (+)= sum over rows of d_output * (x - mean) * rstd;  d_bias[C] (+)= sum over rows
// of d_output.
struct LayerNormBackwardWeights {
  Operand d_output;             // [N,C]
  const float* x = nullptr;     // [N,C]
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
  const float* input = nullptr;   // [N,C]
  const float* weight = nullptr;  // [C]
  Output output;                  // [N,C]
  float* rstd = nullptr;          // [N]
  std::int64_t rows = 0, columns = 0;
  float epsilon = 1e-5F;
};

// Sums over rows that RmsNormBackwardInput adds up on its way.
struct RmsNormSums {
  float* d_weight = nullptr;  // [C] or null; (+)=, as W's
  bool accumulate = false;
};

// I: d_input = (gradient through the norm) + residual_gradient. With `sums`, it is also W.
struct RmsNormBackwardInput {
  Operand d_output;                          // [N,C]
  const float* x = nullptr;                  // [N,C] input of the forward
  const float* weight = nullptr;             // [C]
  const float* rstd = nullptr;               // [N]
  const float* residual_gradient = nullptr;  // [N,C] or null
  float* d_input = nullptr;  // [N,C]; may be x, residual_gradient or (in f32) d_output
  Bf16* rounded = nullptr;   // [N,C] or null: d_input rounded, for products
  RmsNormSums sums;
  std::int64_t rows = 0, columns = 0;
};

// W: d_weight[C] (+)= sum over rows of d_output * x * rstd.
struct RmsNormBackwardWeights {
  Operand d_output;             // [N,C]
  const float* x = nullptr;     // [N,C]
  const float* rstd = nullptr;  // [N]
  float* d_weight = nullptr;    // [C]
  std::int64_t rows = 0, columns = 0;
  bool accumulate = false;
};

}  // namespace takt::backend
