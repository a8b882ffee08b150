// SPDX-License-Identifier: Apache-2.0
// The two halves of `takt-bench plan-truth`.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "tests/bench/command.h"

namespace takt::bench {

struct PlanTruthOptions : CommonOptions {
  int jobs = 0;      // 0: all
  int steps = 20;    // of each run
  std::string only;  // empty: no job in particular
  bool choice = false;
  unsigned seed = 1;  // of the random candidates
};

// Measures how long steps take beside what plans predict (plan_truth.cc).
absl::Status MeasureTruth(const PlanTruthOptions& options);

// Measures whether the plan that is chosen is the fastest (plan_truth_choice.cc).
absl::Status MeasureChoice(const PlanTruthOptions& options);

}  // namespace takt::bench
