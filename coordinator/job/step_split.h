// SPDX-License-Identifier: Apache-2.0
// Says where the time of one measured step of a job went. The board shows it.
#pragma once

#include <array>
#include <vector>

#include "common/base/id.h"
#include "common/explain/explain.h"

namespace takt::job {

// The compute lanes of one pp rank, as means over its dp ranks.
struct PpRankSplit {
  double compute_seconds = 0;                                // F, I, W, B, O
  double predicted_compute_seconds = 0;                      // 0: there is no prediction
  std::array<double, trace::kNumCauses + 1> idle_seconds{};  // by trace::Cause
};

struct StepSplit {
  Generation generation;
  StepId step;
  double step_seconds = 0;  // the sum of `parts`
  explain::Parts parts{};
  std::vector<PpRankSplit> pp_ranks;
};

}  // namespace takt::job
