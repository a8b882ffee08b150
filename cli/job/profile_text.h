// SPDX-License-Identifier: Apache-2.0
// Prints what was measured of a job's layers, and of what they need beside them.
#pragma once

#include <vector>

#include "cli/base/context.h"
#include "cli/job/measure.h"
#include "common/profile/profile.h"

namespace takt::cli {

// The struct borrows.
struct JobProfile {
  const std::vector<JobLayer>& layers;
  // A layer is shown under these, and under all others where it was measured.
  const std::vector<profile::Conditions>& conditions;
  const profile::Profile& profile;
};

// With `-o json` prints one object {"layers": [{"layer", "machine", "threads", "ranks_per_host",
// "forward_seconds", "input_grad_seconds", "weight_grad_seconds", "origin"}...], "ranks": [...],
// "messages": [...], "links": [{"from_host", "to_host", "bytes", "seconds"}...], "sums": [...]}.
// The times of a layer that can only be guessed are null.
void PrintProfile(const Context& context, const JobProfile& known);

}  // namespace takt::cli
