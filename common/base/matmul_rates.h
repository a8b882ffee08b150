// SPDX-License-Identifier: Apache-2.0
// How fast a worker multiplies large matrices.
#pragma once

namespace takt {

// FLOPs per second, by the type of the operands. 0: not measured. `fp8` is measured on CPU cores
// only, which round one operand for the product.
struct MatmulRates {
  double f32 = 0, bf16 = 0, fp8 = 0;
  bool operator==(const MatmulRates&) const = default;
};

}  // namespace takt
