// SPDX-License-Identifier: Apache-2.0
// The options of `takt-bench plan-truth`, and one of its two halves.
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

// Measures whether the plan that is chosen is the fastest (plan_truth_choice.cc).
absl::Status MeasureChoice(const PlanTruthOptions& options);

}  // namespace takt::bench
