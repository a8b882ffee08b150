// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/plan/plan.h"
#include "tests/bench/stage_times.h"

namespace takt::bench {

// The times of a run, in the form that `takt schedule simulate --costs` reads (see its --help).
// Messages are free there, because the links would be those of another machine.
struct MeasuredCosts {
  std::string measured_on;  // for people: the job and the machine
  StageTimes stages{0};
  double optimizer_seconds = 0, tied_seconds = 0;
};
absl::Status WriteCostsFile(const std::string& path, const MeasuredCosts& costs,
                            const plan::Plan& plan);

// Predicts a step of the plan with these costs if every rank has a device of its own and messages
// are free.
struct Prediction {
  double step_seconds = 0, bubble_fraction = 0;
};
absl::StatusOr<Prediction> Predict(const MeasuredCosts& costs, const plan::Plan& plan);

}  // namespace takt::bench
