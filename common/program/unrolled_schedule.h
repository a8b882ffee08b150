// SPDX-License-Identifier: Apache-2.0
// A schedule as its ranks run it, one step after another.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "common/schedule/schedule.h"

namespace takt::program {

// Every row begins with the actions that run once, before the first step (the prologue). The
// actions of the first step follow (the body). With a flush the prologue is empty and the row ends
// there. Without a flush the forwards that begin a step run among the backwards that end the step
// before, and the row goes on for a second step, which shows what the first one hands over to it.
struct UnrolledSchedule {
  // Microbatches are counted through the steps: that of number m in step k is
  // k * num_microbatches + m.
  schedule::Schedule schedule;
  int num_microbatches = 0;  // of one step
  // The position in each rank's row after the last action of the prologue, and of the body.
  std::vector<int> prologue_end, body_end;
};

// schedule: valid. kInvalidArgument (FieldError "schedule"): it has no flush, and its steps cannot
// overlap.
absl::StatusOr<UnrolledSchedule> Unroll(const schedule::Schedule& schedule);

}  // namespace takt::program
