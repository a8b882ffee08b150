// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <limits>

namespace takt::cli {

// Returns the value, but NaN without its sign: printf writes "-nan" for the NaN that x86 computes,
// and people search for "nan".
inline double PlainNan(double value) {
  return std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value;
}

}  // namespace takt::cli
