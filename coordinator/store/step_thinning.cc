// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/step_thinning.h"

namespace takt::store {

std::vector<StepId> StepsToThin(StepId step, std::int64_t window) {
  std::vector<StepId> gone;
  if (window <= 0) return gone;
  // Steps that are younger than `age` and older than a tenth of it are `apart` from each other.
  std::int64_t apart = 1;
  for (std::int64_t age = window; age < step.value(); age *= 10) {
    const std::int64_t old = step.value() - age;
    if (old % apart == 0 && old % (10 * apart) != 0) gone.emplace_back(old);
    if (age > step.value() / 10) break;  // ten times the age is older than any step
    apart *= 10;
  }
  return gone;
}

}  // namespace takt::store
