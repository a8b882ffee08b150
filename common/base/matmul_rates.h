// SPDX-License-Identifier: Apache-2.0
// How fast a worker multiplies large matrices.
#pragma once

namespace takt {

// FLOPs per second, by the type of the operands. 0: not measured.
struct MatmulRates {
  double f32 = 0, bf16 = 0;
  bool operator==(const MatmulRates&) const = default;
};

}  // namespace takt
