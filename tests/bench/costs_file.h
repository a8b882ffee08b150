// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/plan/plan.h"
#include "tests/bench/stage_times.h"

namespace takt::bench {

// Times of a run as `takt schedule simulate --costs` takes them: see its --help. Messages are free
// there, links are another machine's.
struct MeasuredCosts {
  std::string measured_on;  // what, where
  StageTimes stages{0};
  double optimizer_seconds = 0, tied_seconds = 0;
};
absl::Status WriteCostsFile(const std::string& path, const MeasuredCosts& costs,
                            const plan::Plan& plan);

// A step of the plan with these costs, every rank with a device of its own and messages free.
struct Prediction {
  double step_seconds = 0, bubble_fraction = 0;
};
absl::StatusOr<Prediction> Predict(const MeasuredCosts& costs, const plan::Plan& plan);

}  // namespace takt::bench
