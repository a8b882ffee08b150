// SPDX-License-Identifier: Apache-2.0
// The child process that makes one plan. The coordinator runs its own program as such a child
// (child_planner.h); it is not meant for users.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/job_spec.h"
#include "common/plan/plan.h"

namespace takt::planner {

// Makes the plan: plan::MakePlan, or a test's function.
using MakePlan =
    std::function<absl::StatusOr<plan::Plan>(const config::JobSpec&, const plan::PlanOptions&)>;

// The first argument of a program that is run as a planning child.
inline constexpr char kPlanningChild[] = "planning-child";

// The child's exit status when it has no more memory.
inline constexpr int kExitOutOfMemory = 3;

// Does the work of the child: reads a request from stdin, writes the answer to stdout and returns
// the exit status. arguments: what follows kPlanningChild, which is the limit of the child's
// memory, the number of the caller's process, and "yields" or "hurries"
// (ChildPlannerOptions::yields).
int RunPlanningChild(const std::vector<std::string>& arguments, const MakePlan& make_plan);

}  // namespace takt::planner
