// SPDX-License-Identifier: Apache-2.0
// Kernels of a mixture of experts whose rows do not depend on one another.
#include "worker/backend/cpu/isa_kernels.h"
#include "worker/backend/cpu/vec.h"

namespace takt::backend::TAKT_ISA {

void ExpertSwigluForwardRows(const ExpertSwigluForward& op, Range rows) {
  const std::int64_t columns = op.columns;
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    const float weight = op.weights[op.rows.pairs[r]];
    const float *gate = op.gate + r * columns, *up = op.up + r * columns;
    To(op.output, [&](auto* output) {
      for (std::int64_t i = 0; i < columns; i += kWidth) {
        const std::int64_t n = columns - i;
        const Vec x = LoadN(gate + i, n);
        StoreN(output + r * columns + i, x / (1.0F + Exp(-x)) * LoadN(up + i, n) * weight, n);
      }
    });
  }
}

void ExpertSwigluBackwardRows(const ExpertSwigluBackward& op, Range rows) {
  const std::int64_t columns = op.columns;
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    const std::int64_t pair = op.rows.pairs[r];
    const float weight = op.weights[pair];
    const float *gate = op.gate + r * columns, *up = op.up + r * columns;
    const float* d_output = op.d_output + r * columns;
    float *d_gate = op.d_gate + r * columns, *d_up = op.d_up + r * columns;
    Vec d_weight = {};
    for (std::int64_t i = 0; i < columns; i += kWidth) {
      const std::int64_t n = columns - i;
      const Vec x = LoadN(gate + i, n), y = LoadN(up + i, n), d = LoadN(d_output + i, n);
      const Vec sigmoid = 1.0F / (1.0F + Exp(-x));
      const Vec silu = x * sigmoid;
      d_weight += d * silu * y;  // zero in the padding
      StoreN(d_gate + i, weight * d * y * (sigmoid * (1.0F + x * (1.0F - sigmoid))), n);
      StoreN(d_up + i, weight * d * silu, n);
    }
    op.d_weights[pair] = Sum(d_weight);
  }
}

}  // namespace takt::backend::TAKT_ISA
