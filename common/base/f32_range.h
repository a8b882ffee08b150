// SPDX-License-Identifier: Apache-2.0
// The range of the numbers with which jobs compute.
#pragma once

#include <cmath>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"

namespace takt {

// Returns whether `value` is finite as f32, in which jobs compute with the numbers of their specs.
inline bool IsFiniteInF32(double value) {
  return std::abs(value) <= double{std::numeric_limits<float>::max()};
}

// Returns the rule that `value` breaks. It names the bound of f32 only if `value` passes that.
inline std::string WithF32Bound(const char* rule, double value) {
  if (!std::isfinite(value) || IsFiniteInF32(value)) return rule;
  return absl::StrCat(rule, ", at most ", std::numeric_limits<float>::max(),
                      ", the largest number of f32");
}

}  // namespace takt
