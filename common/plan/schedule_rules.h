// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "common/plan/candidate.h"
#include "common/schedule/schedule.h"

namespace takt::plan {

// Checks that the schedule can do what the job asks for beside it.
// Errors: kInvalidArgument (FieldErrors in the job's terms).
absl::Status CheckSchedule(const CandidateInputs& inputs, const schedule::Schedule& schedule);

}  // namespace takt::plan
