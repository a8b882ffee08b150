// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/statusor.h"
#include "common/schedule/render.h"
#include "common/schedule/schedule.h"
#include "common/sim/simulate.h"

namespace takt::cli {

struct SimulatedSchedule {
  sim::Report report;
  schedule::Timeline timeline;
};

// Validates, lowers (compute and messages, no optimizer), proves that it completes, and simulates.
// kInvalidArgument: the rule broken.
absl::StatusOr<SimulatedSchedule> SimulateSchedule(const schedule::Schedule& schedule,
                                                   const cost::Costs& costs);

}  // namespace takt::cli
