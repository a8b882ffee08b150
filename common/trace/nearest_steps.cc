// SPDX-License-Identifier: Apache-2.0
#include "common/trace/nearest_steps.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::trace {

std::string NearestSteps(std::span<const StepId> steps, StepId first, StepId last) {
  TAKT_CHECK(!steps.empty());
  const auto after = std::ranges::upper_bound(steps, last);
  const auto before = std::ranges::lower_bound(steps, first);
  std::string nearest;
  if (before == steps.begin()) {
    nearest = absl::StrCat("first that is: ", after->value());
  } else if (after == steps.end()) {
    nearest = absl::StrCat("last that is: ", std::prev(before)->value());
  } else {
    nearest =
        absl::StrCat("nearest that are: ", std::prev(before)->value(), " and ", after->value());
  }
  return absl::StrCat("the ", nearest,
                      "; of steps shorter than 20 ms only some are measured, so ask for one that "
                      "is, or for a longer range");
}

}  // namespace takt::trace
